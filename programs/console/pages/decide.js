// SPDX-License-Identifier: Apache-2.0
//
// decide.js - saying what became of a request: of one, or of many alike. First
// what repeats would get is shown, byte for byte; then it takes a reason and the
// record's first digits, typed, and a tick for what looks wrong with the answer.

import {Problem, h, fill, post, ofStore, newKey, box, table, rowsOf, field, choice,
        trouble, base64, shown, reason, about, age, link, panel, pad, mark,
        many, refuse, decided, say} from './dom.js';
import {doubts, doubtsOfMany, agree, oneForAll, lookedUp} from './doubts.js';
import {gather, silence, fits, ticked, BATCH_MAX} from './waiting.js';

const FILE_MAX = 1 << 20;
const CHUNK = 10;   // of a batch: about a second

// [action, what became of it, what that means for repeats]
const actions = [
    ['success', 'It took effect, and I know the answer',
        'Every repeat gets the answer below, as if the service had sent it.'],
    ['failure', 'It did not take effect, or it was refused',
        'Every repeat gets the answer below. Nothing is sent to the service.'],
    ['applied', 'It took effect, its answer is lost',
        'Every repeat gets 409 response-unavailable, and is never sent again.'],
    ['reopen', 'Let the next repeat execute',
        'Only where the service recognises the key: it may run twice otherwise.'],
    ['acknowledge', 'Not yet: I look into it',
        'Nothing changes. The audit log says that you are on it.'],
];

// What the service would have answered, which an example stands for.
const hints = {
    success: 'what the service really answers, for example 201',
    failure: 'what the service answers when it refuses, for example 422',
};

const advice = 'The client must send a new key to try again: this key is never ' +
    'executed. Avoid 5xx and 429, which clients repeat by themselves. Make sure that ' +
    'the service is not still at it.';

// ---- What is said

// The fields of an answer; read() gives what the API takes.
function answerFields() {
    let file = null;
    const status = h('input', {id: 'status', type: 'number', min: '200',
                               max: '599'});
    const headers = h('textarea', {id: 'headers', rows: '2',
                                   spellcheck: 'false'});
    const body = h('textarea', {id: 'answer', rows: '4', spellcheck: 'false'});
    const next = h('p', {id: 'advice'}, advice);
    const upload = h('input', {id: 'file', type: 'file'});
    const raw = h('input', {id: 'raw', type: 'checkbox'});
    const value = h('input', {id: 'value', type: 'checkbox'});
    headers.value = 'Content-Type: application/json';
    upload.addEventListener('change', async () => {
        file = upload.files[0] || null;
        if (file && file.size > FILE_MAX) {
            say('That file is over 1 MiB: use once resolve.');
            upload.value = '';
            file = null;
        }
        body.disabled = file !== null;
    });
    const element = h('fieldset', {id: 'what-repeats-get'},
        h('legend', {}, 'What repeats get'),
        next, field('Status', status, hints.success),
        field('Headers', headers, 'one a line, Name: value'),
        field('Body', body),
        h('details', {}, h('summary', {}, 'More'),
            field('A file instead of the body', upload),
            h('label', {class: 'check', for: 'value'}, value, 'It is the result of ' +
                'a function (once.call): JSON, which its callers get as a value'),
            h('label', {class: 'check', for: 'raw'}, raw, 'It is no HTTP ' +
                'response: the bytes alone, for a program of your own')));
    async function read() {
        const out = {};
        if (value.checked) {
            out.value = true;
        } else if (raw.checked) {
            out.raw = true;
        } else {
            if (!/^[2-5]\d\d$/.test(status.value)) {
                refuse(status, 'Give a status from 200 to 599.');
                throw new Problem(0, {code: 'field'});
            }
            out.status = Number(status.value);
            out.headers = headers.value.split('\n').filter((l) => l.trim())
                .map((l) => {
                    const [name, ...value] = l.split(':');
                    return {name: name.trim(), value: value.join(':').trim()};
                });
        }
        if (file)
            out.body_base64 = base64(await file.arrayBuffer());
        else
            out.body = body.value;
        return out;
    }
    const fields = {status, headers, body};
    const typed = () => Object.fromEntries(Object.entries(fields).map(
        ([name, f]) => [name, f.value]));
    const type = (values) => Object.entries(fields).forEach(([name, f]) => {
        f.value = values[name] ?? f.value;
    });
    function of(action) {
        element.querySelector('#status-hint').textContent = hints[action];
        next.hidden = action !== 'failure';
    }
    return {element, read, typed, type, of};
}

// What was typed stays in this tab until it was decided, so that a reload loses
// nothing. A draft is of one fence: of another attempt nothing is known.
const drafts = {
    key: (r) => 'draft ' + r.store + ' ' + r.name + ' ' + r.fence,
    get: (key) => JSON.parse(sessionStorage.getItem(key) || '{}'),
    set: (key, values) => sessionStorage.setItem(key, JSON.stringify(values)),
    drop: (key) => sessionStorage.removeItem(key),
};

// Why a record's repeat cannot be let execute.
const held = (text) => text && h('p', {class: 'hint', id: 'held'}, text +
    ' under \u201chold\u201d (once_lost): the service may not recognise the key, ' +
    'and could execute it twice. So the next repeat cannot be let execute.');

// The choice of an action and what belongs to it. Nothing is chosen before: what
// is chosen is final.
function sayForm(which, hold, onchange, draft) {
    const answer = answerFields();
    let action = null;
    const place = h('div', {});
    function choose(a) {
        const answers = a === 'success' || a === 'failure';
        action = a;
        fill(place, answers && answer.element);
        if (answers)
            answer.of(a);
        onchange(action);
        keep();
    }
    const keep = () => draft && drafts.set(draft, {action, ...answer.typed()});
    const element = h('div', {}, h('fieldset', {},
        h('legend', {}, 'What became of it?'),
        actions.filter(([a]) => which.includes(a)).map(([a, text, means]) =>
            choice('action', a, text, means, false, () => choose(a))),
    held(hold)), place);
    element.addEventListener('input', () => {
        onchange(action);
        keep();
    });
    const before = draft ? drafts.get(draft) : {};
    const chosen = before.action && element.querySelector('#action-' + before.action);
    if (chosen) {
        answer.type(before);
        chosen.checked = true;
        choose(before.action);
    }
    async function read() {
        if (action === null)
            throw new Problem(0, {title: 'Choose first what became of it.'});
        return {action, ...(action === 'success' || action === 'failure' ?
            await answer.read() : {})};
    }
    return {element, read};
}

// The reply that repeats will get, as it goes over the wire but for what the
// gateway adds to each.
function preview(action, reply) {
    if (action === 'reopen')
        return h('p', {}, 'The next repeat executes.');
    if (!reply || reply.is === 'problem')
        return h('p', {}, 'Repeats get 409 response-unavailable: it has been ' +
                 'carried out, its response was not kept.');
    if (reply.is === 'bytes')
        return [h('p', {}, 'Repeats get these ' + reply.body.bytes + ' bytes, as a ' +
                  reply.kind + ':'), h('pre', {id: 'reply', tabindex: '0'},
                                       shown(reply.body))];
    return [h('p', {}, 'Repeats get exactly this, a ' + reply.kind + ', with a ' +
              'body of ' + reply.body.bytes + ' bytes; the gateway adds Date and ' +
              'what it adds to every answer:'),
        h('pre', {id: 'reply', tabindex: '0'}, 'HTTP/1.1 ' + reply.status + '\n' +
          reply.headers.map((l) => l.name + ': ' + l.value + '\n').join('') +
          'Idempotent-Replayed: true\n\n' + shown(reply.body))];
}

// What a decision has done.
function saidOf(action, {kind}) {
    if (action === 'acknowledge')
        return 'Noted. Nothing was decided.';
    if (action === 'reopen')
        return 'Decided: the next repeat executes.';
    return 'Decided: ' + kind + '. ' + (action === 'applied' ?
        'Its answer is lost: repeats get 409 response-unavailable from now on.' :
        'Repeats get it from now on.');
}

// ---- One record

const reasonField = (label, hint) => field(label, h('input', {id: 'why',
    class: 'wide', required: true, maxlength: '512', autocomplete: 'off'}), hint);

export function decisionForm(r, busy, done, reload) {
    const path = ofStore(r.store) + '/records/' + r.name + '/decision';
    const digits = r.name.slice(0, 8);
    const out = h('div', {id: 'checked'});
    let key = newKey(), reason = '';
    const which = actions.map(([a]) => a).filter(
        (a) => a !== 'reopen' || r.takeover);
    const first = h('p', {}, h('button', {type: 'button', class: 'main',
        id: 'check', onclick: check}, 'Show what repeats would get'));
    // Whatever is changed is checked again, and is another decision. Who looks
    // into it changes nothing: there is nothing to check.
    const draft = drafts.key(r);
    const says = sayForm(which, !r.takeover && 'It was made', (action) => {
        key = newKey();
        reason = out.querySelector('#why')?.value || reason;
        first.hidden = action === 'acknowledge';
        fill(out, first.hidden && noteForm());
    }, draft);
    const shownFence = {fence: r.fence, attempt: r.attempt};

    // What was typed stays: an answer that was lost is asked for again, with the
    // same key.
    async function failed(problem, again) {
        if (problem.code === 'field')
            fill(out); // it is said there
        else if (['fence', 'attempt', 'state', 'owned', 'gone'].includes(
            problem.code))
            await reload('Refused, and nothing was changed: ' + problem.message);
        else
            fill(out, trouble(problem), problem.code === 'unknown' && again &&
                h('p', {}, h('button', {type: 'button', id: 'again',
                                        onclick: again}, 'Send it again')));
    }
    async function send(body) {
        busy(true);
        try {
            const {record, audit_lacks: lacks} = await post(path, body, key);
            drafts.drop(draft);
            await done(saidOf(body.action, record) + (lacks ? ' But the audit log ' +
                'lacks its second line: ' + lacks : ''));
        } catch (problem) {
            const refused = out.querySelector('#refused');
            if (problem.status === 400 && refused)
                fill(refused, trouble(problem));
            else
                await failed(problem, () => send(body));
        } finally {
            busy(false);
        }
    }
    async function decide(event) {
        event.preventDefault();
        const button = out.querySelector('#decide');
        button.disabled = true;
        await send({...await says.read(), ...shownFence,
            why: out.querySelector('#why').value,
            confirm: out.querySelector('#digits').value});
        button.disabled = false;
    }
    async function note(event) {
        event.preventDefault();
        await send({action: 'acknowledge', ...shownFence, confirm: digits,
                    why: out.querySelector('#why').value});
    }
    function noteForm() {
        return h('form', {onsubmit: note}, reasonField('What do you do?', 'Others ' +
            'see it in the list of what waits. It is in the audit log, under ' +
            'your name.'), h('div', {id: 'refused'}),
        h('p', {}, h('button', {class: 'main', id: 'decide'}, 'Note it')));
    }
    async function check() {
        try {
            const what = await says.read();
            const {reply} = await post(path, {...what, ...shownFence, dry: true});
            const form = h('form', {}, h('h3', {}, 'Is that what you mean?'),
                r.label && h('p', {}, 'It is about ', h('strong', {}, about(r)), '.'),
                preview(what.action, reply), agree(doubts(r, what.action, reply)),
                reasonField('How do you know?', 'What the service showed, a ' +
                    'ticket. It is kept with the record and in the audit log, ' +
                    'under your name.'),
                field('Type the first eight digits of the record', h('input', {
                    id: 'digits', required: true, autocomplete: 'off',
                    spellcheck: 'false', maxlength: '8', pattern: digits,
                    title: digits}), digits),
                h('div', {id: 'refused'}),
                h('p', {class: 'row'}, h('button', {class: 'main', id: 'decide'},
                    'Decide'), h('span', {class: 'soft'},
                    'It cannot be undone.')));
            form.addEventListener('submit', decide);
            fill(out, form);
            out.querySelector('#why').value = reason;
            out.querySelector('#doubt-0, #why').focus();
            say('Checked. Say how you know, and type the first eight digits.');
        } catch (problem) {
            await failed(problem);
        }
    }
    return panel('Decide', null, h('div', {class: 'pad', id: 'decision'},
        h('p', {}, 'Find out at the service first. What you say is final: every ' +
          'repeat gets it as its answer.'), says.element, first, out));
}

// ---- Many

const said = {done: '\u2713 done', possible: '\u25cb would be decided'};

function results(caption, list, of) {
    return panel(caption, null, table(caption, ['What it is about', 'Result',
        'Record'], rowsOf(list.map((one) => {
        const r = of.get(one.name);
        return [[{class: 'text'}, about(r)],
            [{}, mark(!one.ok ? 'wrong' : one.verdict === 'done' ? 'done' : '',
                      one.ok ? said[one.verdict] : '\u2716 ' +
                (one.text || one.verdict))],
            [{class: 'tight'}, link(r)]];
    }))));
}

// In chunks, so that it can be seen how far it is, and be ended. A batch is of
// one store.
async function run(chosen, what, key, progress) {
    const list = [];
    for (const s of new Set(chosen.map((r) => r.store))) {
        const items = chosen.filter((r) => r.store === s).map(
            (r) => ({name: r.name, fence: r.fence, attempt: r.attempt}));
        for (let i = 0; i < items.length; i += CHUNK) {
            const some = await post(ofStore(s) + '/batch', {...what,
                items: items.slice(i, i + CHUNK)}, key);
            list.push(...some.results);
            progress(list.length);
            if (some.stopped)
                return {list, stopped: true};
        }
    }
    return {list, stopped: false};
}

function lastForm(chosen, {action}, good, reply, decide) {
    const form = h('form', {}, h('p', {}, many(good.length, 'request') + ' of ' +
        chosen.length + ' can be decided; ' + (chosen.length - good.length) +
        ' would be refused.'),
    good.length > 0 && [preview(action, reply), oneForAll(good, action),
        agree(doubtsOfMany(good, action, reply)), lookedUp(good),
        reasonField('How do you know?', 'For all of them.'),
        field('Type how many are decided', h('input', {id: 'digits',
            required: true, autocomplete: 'off', pattern: String(good.length)}),
        String(good.length)),
        h('p', {class: 'row'}, h('button', {class: 'main', id: 'decide'},
            'Decide ' + good.length), h('span', {class: 'soft'},
            'It cannot be undone.'))]);
    form.addEventListener('submit', decide);
    return form;
}

// What repeats of one of them would get: of all it is the same.
const dry = (r, what) => post(ofStore(r.store) + '/records/' + r.name +
    '/decision', {...what, fence: r.fence, attempt: r.attempt, dry: true});

async function chosenOf(session, {ticked: byTicks, ...p}) {
    const names = byTicks && ticked.all();
    const it = await gather(session.stores.filter(
        (s) => !p.store || s === p.store), null, names ?
        () => (r) => names.has(r.name) : (now) => fits(p, '', now));
    return {now: it.now, silent: silence(it), chosen: it.all.slice(0, BATCH_MAX)};
}

export async function batch({page, title, session, parameters, poll}) {
    const {chosen, now, silent} = await chosenOf(session, parameters);
    const of = new Map(chosen.map((r) => [r.name, r]));
    const out = h('div', {class: 'page'});
    let key = newKey();
    const holds = chosen.filter((r) => !r.takeover).length;
    const says = sayForm(['success', 'failure', 'applied',
        holds < chosen.length && 'reopen'], holds > 0 && (holds < chosen.length ?
        holds + ' of them ' + (holds === 1 ? 'was' : 'were') + ' made' :
        'They were made'), () => {
        key = newKey();
        fill(out);
    });

    async function decide(event, what, good) {
        event.preventDefault();
        const why = out.querySelector('#why').value;
        const place = h('div', {class: 'page'});
        fill(out, place);
        try {
            const {list, stopped} = await run(good, {...what, why}, key,
                (n) => fill(place, h('p', {}, n + ' of ' + good.length +
                    ' are decided.'), h('progress', {max: good.length, value: n,
                    'aria-label': 'Decided so far'})));
            fill(place, stopped && box('wrong', h('p', {},
                '\u2716 It stopped at the last one of these: look at it, then ' +
                'begin again.')),
            !stopped && decided(list.filter((o) => o.ok).length + ' are decided.',
                                '#/waiting', 'What else waits'),
            results('Decided', list, of));
            ticked.set([]);
            await poll();
            say('The batch has ended.');
        } catch (problem) {
            place.append(trouble(problem));
        }
    }
    async function check() {
        try {
            const what = await says.read();
            const {list} = await run(chosen, {...what, dry: true}, null, () => {});
            const good = chosen.filter((r) => list.find(
                (o) => o.name === r.name && o.ok));
            const {reply} = good.length ? await dry(good[0], what) : {};
            fill(out, h('section', {class: 'panel dry'}, h('div', {class: 'title'},
                h('h2', {}, 'Dry run'), mark('', 'nothing has been changed')),
            pad(lastForm(chosen, what, good, reply,
                         (e) => decide(e, what, good)))),
            results('What would become of each', list, of));
            out.scrollIntoView();
            out.querySelector('#for-all, #doubt-0, #looked-up, #why')?.focus(
                {preventScroll: true});
            say('The dry run has ended: ' + good.length + ' can be decided.');
        } catch (problem) {
            fill(out, problem.code !== 'field' && trouble(problem));
        }
    }
    page.append(title('Decide many', chosen.length > 0 && 'The same decision for ' +
        'each of these, by its own fence, ten a second. It stops where the store ' +
        'does not answer. Find out at the service first, for each of them.', h('a', {class: 'way', href: '#/waiting'},
                              '\u2039 Waiting')));
    if (silent)
        page.append(silent);
    if (!chosen.length) {
        page.append(box('', h('p', {id: 'none-fits'}, Object.values(parameters).some(
            (v) => v) ? 'Nothing that waits fits this filter, or is ticked.' :
            'Nothing waits.')));
        return;
    }
    const stores = new Set(chosen.map((r) => r.store)).size;
    page.append(h('details', {class: 'panel', open: chosen.length <= 10},
        h('summary', {class: 'title'}, many(chosen.length, 'request') + ' that wait' +
            (chosen.length === 1 ? 's' : '') + (stores > 1 ? ', in ' +
            many(stores, 'store') : '')),
        table('Chosen', ['What it is about', 'Why it is unknown', 'Since', 'Record'],
            chosen.map((r) => ({key: r.name, cells: [
                [{class: 'text'}, about(r), h('span', {class: 'hint'},
                    h('bdi', {}, r.group || 'no realm'))],
                [{class: 'why'}, reason(r)], [{class: 'tight figures'}, age(r.ended, now, ' ago')],
                [{class: 'tight'}, link(r)]]})))),
    h('section', {class: 'panel'}, pad(says.element, h('p', {}, h('button',
        {type: 'button', class: 'main', id: 'check', onclick: check},
        'Dry run'), ' ', h('span', {class: 'soft'}, 'Nothing is changed by it.')))),
    out);
}
