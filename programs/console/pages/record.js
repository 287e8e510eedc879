// SPDX-License-Identifier: Apache-2.0
//
// record.js - one record: what became of it, what happened, what a repeat is
// told now, and deciding it.

import {h, fill, update, get, post, ofStore, box, state, reason, freeing, time,
        span, plain, named, facts, panel, pad, copied, field, trouble, shown, say,
        news, decided} from './dom.js';
import {decisionForm} from './decide.js';
import {whoOf, didOf} from './lists.js';

const at = (s, name, more) => ofStore(s) + '/records/' + name + (more || '');

// ---- What it is

function told(t) {
    if (t.is === 'executes')
        return t.text;
    if (t.is === 'problem')
        return t.status + ' ' + t.code + '. ' + t.text;
    if (t.is === 'response')
        return 'the stored response: ' + t.status + ', headers ' +
            (t.headers.join(', ') || 'none') + ', a body of ' + t.body_bytes +
            ' bytes, marked Idempotent-Replayed: true';
    if (t.is === 'call')
        return 'the stored result: code ' + t.code + ', type ' +
            (t.type || '\u2013') + ', ' + t.body_bytes + ' bytes';
    return 'the stored ' + t.body_bytes + ' bytes';
}

const policy = (r) => [r.takeover ? 'takeover: a lost owner is replaced' :
    'hold: a lost outcome waits for an operator',
r.retry_failed ? ', failures may be tried again' : '',
r.doubt ? '; an earlier attempt may have executed' : ''];

function recordFacts(r) {
    const owned = r.state === 'claimed' || r.state === 'dispatched';
    return facts([
        ['A repeat is told', told(r.told)],
        r.reason && [r.state === 'indeterminate' ? 'Why unknown' : 'Reason',
                     r.reason + ': ' + reason(r)],
        ['Realm', h('bdi', {}, r.group || '\u2013')],
        ['Label', r.label ? h('bdi', {}, r.label) : '\u2013'],
        r.trace && ['Trace id', copied(r.trace, 'the trace id')],
        owned && ['Lease until', time(r.lease_until, r.now)],
        !owned && r.keep_until && ['Kept until', time(r.keep_until, r.now)],
        ['Policy', policy(r)],
        r.note && ['Decided', r.note],
        ['Store', h('a', {href: '#/store/' + r.store}, r.store)],
        ['Name', copied(r.name, 'the name')],
        ['Attempt', String(r.attempt)],
        ['Fence', h('code', {}, r.fence)],
    ]);
}

// Where the service itself shows what the record is about: the pattern's {label}
// is the label, and {order} what stands in it behind "order=".
function service(pattern, r) {
    if (!pattern || !r.label)
        return null;
    let whole = true;
    const address = pattern.replace(/\{([a-z_]+)\}/g, (all, name) => {
        const [, value] = name === 'label' ? [0, r.label] :
            new RegExp('(?:^|[ ?&;])' + name + '=([^ &;]+)').exec(r.label) || [];
        const text = plain(value || '');
        // A browser takes these for steps in the path, however they are written.
        whole = whole && text !== '' && text !== '.' && text !== '..';
        return encodeURIComponent(text);
    });
    return whole && h('a', {id: 'service', href: address, target: '_blank',
        rel: 'noopener noreferrer'}, 'Open it in the service \u2197');
}

// ---- The body, for who may see it and says why

function bodyForm(r) {
    const out = h('div', {});
    const why = h('input', {id: 'body-why', class: 'wide', maxlength: '512',
                            required: true, autocomplete: 'off'});
    const form = h('form', {}, field('Why do you look?', why,
        'It is written to the audit log.'), h('p', {},
        h('button', {id: 'show-body'}, 'Show the body')));
    form.addEventListener('submit', async (e) => {
        e.preventDefault();
        try {
            const {body} = await post(at(r.store, r.name, '/body'),
                                      {why: why.value});
            fill(out, h('pre', {id: 'body', tabindex: '0'}, shown(body)));
            say('The body is shown.');
        } catch (problem) {
            fill(out, trouble(problem));
        }
    });
    return panel('The stored body', null, pad(form, out));
}

// ---- What happened, one after the other

// A failure is an outcome that is known, but it has not the colour of a success.
const lookOf = (kind) => kind === 'failure' ? '' : 'done';

// What an event of the record is: [its look, its words, more]
function event(r, e) {
    if (e.what === 'decided')
        return [lookOf(r.kind), e.text];
    if (e.what !== 'ended')
        return ['runs', e.text];
    if (r.state === 'indeterminate')
        return ['waits', 'The outcome became unknown', reason(r)];
    if (r.state === 'completed')
        return [lookOf(r.kind), 'It ended: ' + r.kind, r.reason && reason(r)];
    return ['', 'It was given back: nothing was done', r.reason && reason(r)];
}

const steps = {intent: ' is about to', done: '', refused: ', refused',
               unknown: ', outcome unknown'};

const decides = (l) => l.action === 'resolve' || l.action === 'reopen';

// An intent whose end is there, too, says nothing more.
function decisions(audit) {
    const ended = new Set(audit.map((l) => l.of));
    return audit.filter((l) => l.step !== 'intent' || !ended.has(l.seq)).map(
        (l) => ({time: l.time, decides: decides(l) && l.step === 'done',
            look: l.step !== 'done' ? 'waits' : decides(l) ? lookOf(l.kind) : '',
            what: whoOf(l) + (steps[l.step] || '') + ': ' + didOf(l),
            hint: [l.why, l.way].filter(Boolean).join(' \u00b7 ')}));
}

// What is known of a record's outcome before it was decided; not when that was.
const before = (r) => ({look: 'waits', what: 'The outcome became unknown',
    hint: reason(r)});

// A decision stands in the record and in the audit log, which knows more of it.
function story(r, events, audit) {
    const lines = decisions(audit);
    const known = lines.some((l) => l.decides);
    const was = r.state === 'completed' && r.reason &&
        !freeing.includes(r.reason) && events.some((e) => e.what === 'decided');
    const begun = events.filter((e) => e.what !== 'decided' || !known).map((e) => {
        const [look, what, hint] = event(r, e);
        return {time: e.time, look, what, hint, begins: e.what === 'granted'};
    });
    const all = [...begun, ...lines].sort((a, b) => a.time < b.time ? -1 :
        a.time > b.time ? 1 : 0).flatMap((e) => e.begins && was ? [e, before(r)] : [e]);
    return h('ol', {class: 'story'}, all.map((e) => h('li', {class: e.look},
        h('b', {}, e.what), e.time && time(e.time, r.now),
        e.hint && h('span', {class: 'hint'}, e.hint))),
    h('li', {}, h('b', {}, r.told.is === 'problem' ? 'Repeats are told \u201c' +
        r.told.code + '\u201d' : r.told.is === 'executes' ?
        'The next repeat executes' : 'Repeats get the stored answer'),
    r.state === 'indeterminate' && h('span', {class: 'hint'}, 'until you decide')));
}

// A lost owner that nobody has reaped, because no gateway is left, may be decided.
const decidable = (r) => r.state === 'indeterminate' ||
    (r.state === 'dispatched' &&
     Date.parse(r.lease_until) < Date.parse(r.now));

const same = (a, b) => a.fence === b.fence && a.state === b.state &&
    a.attempt === b.attempt && a.note === b.note;

// Who has decided the record that was on the screen, as far as the audit log or
// the record's note says.
function decidedBy(r, audit, was) {
    const l = audit.find((x) => decides(x) && x.fence === was.fence &&
        (x.step === 'done' || x.step === 'intent'));
    if (l)
        return whoOf(l) + ' decided it ' + span(Date.parse(r.now) -
            Date.parse(l.time)) + ' ago: ' + (l.kind || 'the next repeat executes') +
            ', \u201c' + l.why + '\u201d. ';
    return r.note && r.note !== was.note ? r.note + '. ' : '';
}

// A record whose label names no order is found by other ways.
const nameless = (r) => r.state === 'indeterminate' && !named(r.label).length &&
    /^([A-Z]+ \/\S*)?$/.test(r.label || '') && box('', h('p', {id: 'nameless'},
    'This record does not say which order it is about: set once_label. The ' +
    'gateway\u2019s error log has a line with ', copied(r.name.slice(0, 16),
    'what the log has of the name'), '.'));

function corrupt(page, title, name) {
    page.append(title('Record ' + name.slice(0, 8)), box('wrong', h('p', {},
        '\u2716 This record fails its checksum. It counts as taken, so ' +
        'nothing runs twice. Keep a copy of the store and look at the disk.')));
}

// What can be done about it here.
function action(r, session, form) {
    const may = session.rights.includes('decide');
    if (!decidable(r))
        return r.state === 'completed' && r.told.is !== 'problem' &&
            session.rights.includes('body') && bodyForm(r);
    return may ? form() : panel('Decide', null, pad(h('p', {}, session.decide ?
        'You have not the right to decide.' :
        'This console only shows. Decide with'), !session.decide && h('pre', {},
        'once resolve ' + r.name.slice(0, 16) + ' --fence ' + r.fence)));
}

export async function record(context) {
    const {page, title, words: [s, name], session, poll, again} = context;
    const head = h('div', {}), beside = h('div', {}), place = h('div', {});
    const above = h('div', {class: 'news'});
    let r, lines, newest;
    // The audit log's newest line: it tells whether there is more to read.
    const seq = async () => ((await get('audit?limit=1')).lines[0] || {}).seq;
    async function read() {
        newest = await seq().catch(() => newest);
        r = await get(at(s, name));
        lines = await get(at(s, name, '/timeline'));
    }
    try {
        await read();
    } catch (problem) {
        if (problem.code !== 'corrupt')
            throw problem;
        return corrupt(page, title, name);
    }
    let deciding = false;
    // What changes by itself: ages, and what the log says.
    function draw() {
        const since = r.state === 'indeterminate' && r.ended ? ' for ' +
            span(Date.parse(r.now) - Date.parse(r.ended)) : '';
        update(head, title(r.label ? plain(r.label) : 'Record ' + name.slice(0, 16),
            [state(r, since), ' ', service(session.link, r)],
            h('a', {class: 'way', href: '#/waiting'}, '\u2039 Waiting')));
        update(beside, panel('What happened', null, pad(
            story(r, lines.events, lines.audit), lines.trouble && box('wrong',
                h('p', {}, 'The audit log cannot be read: ' + lines.trouble)))),
        panel('Record', null, pad(recordFacts(r))));
    }
    function drawAll(said) {
        draw();
        fill(place, said, nameless(r), action(r, session, () => decisionForm(
            r, (is) => { deciding = is; }, done, reload)));
        place.hidden = !place.firstChild;
    }
    async function reload(text) {
        const was = r, chosen = place.querySelector(':checked[type=radio]');
        await read();
        drawAll(null);
        news(above, text + ' ' + decidedBy(r, lines.audit, was) + (chosen ?
            'Your input was not used.' : 'What you see is new.'));
    }
    async function done(text) {
        await read();
        await poll().catch(() => {}); // the next look says so
        fill(above);
        drawAll(decided(text, '#/waiting', 'What else waits'));
        document.getElementById('decided').focus();
        say(text);
    }
    page.append(head, above, h('div', {class: 'two'}, place, beside));
    drawAll(null);
    again(async () => {
        const was = r;
        const now = await get(at(s, name));
        const last = await seq().catch(() => newest);
        const more = last === newest ? null : await get(at(s, name, '/timeline'));
        // What a decision from here changes is shown by done().
        if (deciding || r !== was)
            return;
        if (!same(now, r)) {
            await reload('Something has happened to this record.');
            return;
        }
        r = now;
        newest = last;
        lines = more || lines;
        draw();
    });
}
