// SPDX-License-Identifier: Apache-2.0
//
// messages.js - rows of the outbox, parked messages and sagas: lists that look
// alike, one of them with what can be decided about it, and how many need that.

import {h, fill, update, post, query, box, mark, time, age, span, table, panel, pad,
        facts, field, choice, refuse, decided, news, trouble, number, many, say} from
    './dom.js';

const PAGE = 50;

const ofDatabase = (d) => 'databases/' + encodeURIComponent(d);

// How many need a person, of each kind.
export function needs(databases) {
    const bad = (list) => list.reduce((n, c) => n + c.dead + c.indeterminate, 0);
    return databases.reduce((sum, d) => ({outbox: sum.outbox + bad(d.outbox),
        parked: sum.parked + bad(d.parked), saga: sum.saga + (d.sagas.stuck || 0)}),
    {outbox: 0, parked: 0, saga: 0});
}

// ---- Words

// [sign and word, kind, what that means]
const phases = {
    ready: ['\u2192 to be sent', '', 'The next relay sends it.'],
    leased: ['\u2026 being sent', 'runs', 'A relay has it.'],
    waiting: ['\u2026 tried again later', '', 'It has not ended well yet.'],
    done: ['\u2713 done', 'done', 'It has arrived.'],
    dead: ['\u2716 given up', 'wrong', 'It failed, and is not tried again.'],
    indeterminate: ['? outcome unknown', 'waits', 'It may have had its effect.'],
    going: ['\u2192 going', 'runs', 'Its steps are being carried out.'],
    confirming: ['\u2192 being confirmed', 'runs', 'Every step was tried.'],
    undoing: ['\u2190 being undone', 'runs', 'What was done is taken back.'],
    undone: ['\u2713 undone', 'done', 'What was done was taken back.'],
    stuck: ['? stuck', 'waits', 'A confirm or cancel was refused, or its outcome is ' +
        'unknown.'],
    corrupt: ['\u2716 corrupt', 'wrong', 'Its row cannot be read.'],
};

const phaseOf = (r) => mark(phases[r.phase][1], phases[r.phase][0]);

const kinds = {
    outbox: {
        title: 'Outbox', one: 'Row', of: 'Route', path: 'outbox',
        says: 'Messages that programs have emitted and a relay carries on.',
        phases: ['dead', 'indeterminate', 'waiting', 'ready', 'done'],
        none: 'The outbox is empty.',
    },
    parked: {
        title: 'Parked', one: 'Parked message', of: 'Consumer', path: 'parked',
        says: 'Messages that a consumer could not finish.',
        phases: ['dead', 'indeterminate', 'waiting'],
        none: 'No message is parked.',
    },
    saga: {
        title: 'Sagas', one: 'Saga', of: 'Kind', path: 'sagas',
        says: 'Steps at several services, all of them or none.',
        phases: ['stuck', 'going', 'confirming', 'undoing', 'done', 'undone'],
        none: 'There is no saga.',
    },
};

// [what can be decided, in words, what it means]
const verbs = {
    outbox: [
        ['retry', 'Send it again', 'Under its id, now. A target that recognises ' +
            'ids takes it once.', ['dead', 'indeterminate', 'waiting']],
        ['resolve', 'It has arrived', 'You have seen to it: the row is done.',
            ['dead', 'indeterminate']],
        ['drop', 'Give it up', 'The row goes, sent or not.',
            ['dead', 'indeterminate', 'waiting', 'ready']],
    ],
    parked: [
        ['retry', 'Run it again', 'Now, counting from 0.',
            ['dead', 'indeterminate', 'waiting']],
        ['resolve', 'It was done', 'You have seen to it: a copy that arrives later ' +
            'does not run.', ['indeterminate']],
        ['drop', 'Give it up', 'The message goes; a copy that arrives later does ' +
            'not run.', ['dead', 'indeterminate', 'waiting']],
    ],
    saga: [
        ['retry', 'Make the calls again that failed', 'A call that was refused ' +
            'is sent under a new id, or its target would refuse it again. One that ' +
            'may have been taken keeps its id, so that it is not carried out twice.',
        ['stuck']],
        ['resolve', 'What failed in one step was done by hand', 'The saga goes on ' +
            'behind this step.', ['stuck']],
        ['abort', 'Undo it', 'What was done is taken back.', ['going']],
    ],
};

// ---- A list

const to = (d, kind, r) => '#/message/' + encodeURIComponent(d) + '/' + kind + '/' +
    encodeURIComponent(r.name);

function counts(kind, d) {
    if (kind === 'saga')
        return d.sagas;
    return d[kind].reduce((sum, c) => {
        for (const p of kinds[kind].phases)
            if (c[p] !== undefined)
                sum[p] = (sum[p] || 0) + c[p];
        return sum;
    }, {});
}

function chips(kind, d, p, session) {
    const k = kinds[kind], n = d ? counts(kind, d) : {};
    const at = (change) => '#/' + k.path + '?' + query({...p, after: '', ...change});
    const chip = (text, href, on, key) => h('li', {}, h('a', {class: 'chip', href,
        'aria-current': on ? 'true' : null, 'data-key': key}, ...text));
    return h('ul', {class: 'chips', 'aria-label': 'Filter'},
        session.databases.length > 1 && session.databases.map((name) => chip(
            ['database ' + name], at({db: name, phase: ''}), name === p.db,
            'db-' + name)),
        chip(['All'], at({phase: '', of: ''}), !p.phase && !p.of, 'phase-all'),
        k.phases.map((phase) => chip([phases[phase][0].slice(2), n[phase] !==
            undefined && [' ', h('span', {}, number(n[phase]))]],
        at({phase: p.phase === phase ? '' : phase}), p.phase === phase,
        'phase-' + phase)),
        p.of && chip([k.of.toLowerCase() + ' ' + p.of], at({of: ''}), true, 'of'));
}

function rows(kind, d, list, now) {
    const k = kinds[kind];
    return table(k.title, [kind === 'saga' ? 'Saga' : k.of, 'State', 'Tries', 'Since',
        'What it says'], list.map((r) => ({key: 'row-' + r.name, cells: [
        [{class: 'text'}, h('a', {href: to(d, kind, r), 'data-key': r.name},
            h('b', {}, h('bdi', {}, r.of || '\u2013')), ' ', h('bdi', {}, r.name)),
        h('span', {class: 'hint'}, kind === 'saga' ? many(r.step_count, 'step') :
            [r.type || 'no type', r.key ? ', key ' + r.key : ''])],
        [{class: 'tight'}, phaseOf(r)],
        [{class: 'tight figures'}, kind === 'saga' ? '\u2013' : number(r.seen)],
        [{class: 'tight figures'}, age(r.since || r.at, now, ' ago')],
        [{class: 'text'}, r.text ? h('bdi', {}, r.text) : '\u2013']]})));
}

function nothing(kind, p) {
    const k = kinds[kind];
    if (p.after)
        return box('', h('p', {}, 'No more.'));
    if (p.phase || p.of)
        return box('', h('p', {id: 'none-fits'}, 'Nothing fits this filter. What ' +
            'does not fit it is not shown.'), h('p', {}, h('a', {
            href: '#/' + k.path}, 'Show all')));
    return box('done', h('p', {}, '\u2713 ' + k.none));
}

async function list(kind, {page, title, session, parameters, now, again}) {
    const k = kinds[kind];
    const p = {...parameters, db: parameters.db || session.databases[0]};
    const place = h('div', {}), body = h('div', {class: 'panel'});
    const at = (change) => '#/' + k.path + '?' + query({...p, after: '', ...change});
    async function look() {
        const some = await post(ofDatabase(p.db) + '/rows', {kind, limit: PAGE,
            ...(p.phase && {phase: p.phase}), ...(p.of && {of: p.of}),
            ...(p.after && {after: p.after})});
        update(place, chips(kind, now().databases.find((d) => d.name === p.db), p,
                            session));
        update(body, some.rows.length ? rows(kind, p.db, some.rows, some.now) :
            nothing(kind, p), (p.after || some.next) && h('div', {class: 'bar'},
            p.after && h('a', {class: 'button', id: 'first', href: at({})},
                         '\u2039 The first'),
            some.next && h('a', {class: 'button', id: 'next',
                                 href: at({after: some.next})}, 'Next \u203a')));
    }
    page.append(title(k.title, k.says), place, body);
    await look();
    again(look);
}

export const outbox = (context) => list('outbox', context);
export const parked = (context) => list('parked', context);
export const sagas = (context) => list('saga', context);

// ---- One of them

function messageFacts(kind, d, r, now) {
    return facts([
        [kinds[kind].of, h('bdi', {}, r.of || '\u2013')],
        ['State', phases[r.phase][2]],
        r.text && ['What it says', h('bdi', {}, r.text)],
        r.status && ['Status', String(r.status)],
        kind !== 'saga' && ['Tries', number(r.seen)],
        [kind === 'saga' ? 'Started' : kind === 'outbox' ? 'Emitted' : 'Parked',
            time(r.at, now)],
        r.since && ['In this state since', time(r.since, now)],
        r.due && [kind === 'saga' ? 'Deadline' : 'Due', time(r.due, now)],
        r.type && ['Type', r.type],
        r.bytes !== undefined && ['Body', many(r.bytes, 'byte')],
        r.id && ['Id, hashed', h('code', {}, r.id)],
        r.key && ['Key, hashed', h('code', {}, r.key)],
        r.in_saga && ['Belongs to', 'a saga: its row cannot be given up'],
        ['Database', d],
    ]);
}

function stepsOf(r) {
    return h('ol', {class: 'story'}, r.steps.map((s, i) => h('li', {class: s.failed ?
        'waits' : s.state === 'waiting' ? '' : s.state.endsWith('ing') ? 'runs' :
        'done'}, h('b', {}, 'Step ' + (i + 1) + ': ' + s.state + (s.failed ?
        ', ' + s.failed : '')),
    h('span', {class: 'hint'}, [s.try && 'try ' + s.try, s.confirm && 'confirm ' +
        s.confirm, s.cancel && 'cancel ' + s.cancel].filter(Boolean).join(
        ' \u00b7 ')),
    (s.text || s.status) && h('span', {class: 'hint'}, [s.status && 'status ' +
        s.status, s.text].filter(Boolean).join(': ')))));
}

const stepsThat = (r, fits) => r.steps.map((s, i) => fits(s, i) ? i + 1 : 0).filter(
    Boolean);

// "Step 2 is ..." or "Steps 1, 2 are ...".
const steps = (list, what) => list.length === 1 ? 'Step ' + list[0] + ' is ' + what :
    'Steps ' + list.join(', ') + ' are ' + what;

// What a decision about a saga does to its steps. `n`: the one done by hand, or 0.
function effect(verb, r, n) {
    const failed = stepsThat(r, (s, i) => s.failed && i + 1 !== n);
    const begun = stepsThat(r, (s) => s.state === 'trying' || s.state === 'tried');
    const back = r.steps.some((s) => s.state.startsWith('cancel'));
    const cancels = (when) => begun.length > 0 && steps(begun, 'cancelled' + when +
        (begun.length > 1 ? ', the last first. ' : '. '));
    const rest = back ? cancels(' after it') || 'No other step is cancelled any more.' :
        'The other steps are confirmed, whatever becomes of it.';
    if (verb === 'abort')
        return [cancels(''), 'Steps that were not begun are never tried.'];
    if (verb === 'retry')
        return [steps(failed, 'called again. '), rest];
    if (!n)
        return 'Say which step.';
    if (!r.steps[n - 1]?.failed)
        return 'Step ' + n + ' has not failed.';
    return ['Step ' + n + ' counts as done, and is not called again. ',
            failed.length ? steps(failed, 'still for you to decide.') : rest];
}

// What can be decided about it; `done` is told what was.
function decisionForm(d, kind, r, done) {
    const can = verbs[kind].filter(([verb, , , when]) => when.includes(r.phase) &&
        !(verb === 'drop' && r.in_saga));
    if (!can.length)
        return null;
    const out = h('div', {}), place = h('div', {}), means = h('p', {id: 'effect'});
    const isSaga = kind === 'saga', first = r.name.slice(0, 8);
    let verb = null;
    const tell = () => fill(means, isSaga && verb && effect(verb, r, Number(
        place.querySelector('#step')?.value || 0)));
    const form = h('form', {}, h('fieldset', {},
        h('legend', {}, 'What is to become of it?'), can.map(([v, text, hint]) =>
            choice('verb', v, text, hint, false, () => {
                verb = v;
                fill(place, v === 'resolve' && isSaga && field('Which step?',
                    h('input', {id: 'step', type: 'number', min: '1', required: true,
                                max: String(r.step_count), oninput: tell})));
                tell();
            }))), place, means,
    field('How do you know?', h('input', {id: 'why', class: 'wide', required: true,
        maxlength: '512', autocomplete: 'off'}), 'What the target or the service ' +
        'showed, a ticket. It is kept with it and in the audit log, under your name.'),
    isSaga && field(r.name.length > 8 ? 'Type the first eight characters of the ' +
        'saga' : 'Type the name of the saga', h('input', {
        id: 'digits', required: true, autocomplete: 'off', spellcheck: 'false',
        maxlength: '8'}), first),
    out, h('p', {class: 'row'}, h('button', {class: 'main', id: 'decide'}, 'Decide'),
           h('span', {class: 'soft'}, 'It cannot be undone.')));
    form.addEventListener('submit', async (event) => {
        event.preventDefault();
        if (!verb) {
            fill(out, box('wrong', h('p', {}, '\u2716 Choose first what is to ' +
                                      'become of it.')));
            return;
        }
        const step = form.querySelector('#step');
        const typed = form.querySelector('#digits');
        if (typed && typed.value !== first) {
            refuse(typed, 'This saga begins with ' + first + '.');
            return;
        }
        const button = form.querySelector('#decide');
        button.disabled = true;
        try {
            const {audit_lacks: lacks} = await post(ofDatabase(d) + '/decision', {
                kind, name: r.name, verb, seen: r.seen,
                phase: r.phase === 'leased' ? 'ready' : r.phase,
                why: form.querySelector('#why').value,
                ...(step && {step: Number(step.value)})});
            await done('Decided: ' + can.find(([v]) => v === verb)[1].toLowerCase() +
                '.' + (lacks ? ' But the audit log lacks its second line: ' + lacks :
                ''));
        } catch (problem) {
            button.disabled = false;
            fill(out, trouble(problem));
        }
    });
    return panel('Decide', null, pad(h('p', {}, kind === 'saga' ?
        'Find out first, at the service that the failed step calls.' :
        'Find out at the target first.'),
                                     form));
}

export async function message({page, title, session, words: [d, kind, name], poll,
                               again}) {
    const k = kinds[kind];
    const head = h('div', {}), beside = h('div', {}), place = h('div', {});
    const above = h('div', {class: 'news'});
    let r = null, now;
    const ask = async () => {
        ({row: r, now} = await post(ofDatabase(d) + '/row', {kind, name}));
    };
    function draw() {
        update(head, title(k.one + ' ' + name, [phaseOf(r), r.since ?
            ' for ' + span(Date.parse(now) - Date.parse(r.since)) : ''],
        h('a', {class: 'way', href: '#/' + k.path + '?' + query({db: d})},
          '\u2039 ' + k.title)));
        update(beside, r.steps && panel('Steps', null, pad(stepsOf(r))),
               panel(k.one, null, pad(messageFacts(kind, d, r, now))));
    }
    function drawAll(said) {
        draw();
        fill(place, said, session.rights.includes('decide') &&
            decisionForm(d, kind, r, done));
        place.hidden = !place.firstChild;
    }
    async function done(text) {
        const said = decided(text, '#/' + k.path + '?' + query({db: d}),
                             'What else there is');
        await poll().catch(() => {}); // the next look says so
        fill(above);
        try {
            await ask();
            drawAll(said);
        } catch (problem) { // it is gone now, as was decided
            if (problem.code !== 'gone')
                throw problem;
            fill(place, said);
            fill(beside);
            again(null);
        }
        document.getElementById('decided').focus();
        say(text);
    }
    await ask();
    page.append(head, above, h('div', {class: 'two'}, place, beside));
    drawAll(null);
    again(async () => {
        const before = r;
        await ask();
        if (before.seen === r.seen && before.phase === r.phase) {
            draw();
            return;
        }
        drawAll(null);
        news(above, 'Something has happened to it; what you see is new.');
    });
}
