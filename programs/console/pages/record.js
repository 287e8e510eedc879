// SPDX-License-Identifier: Apache-2.0
//
// record.js - one record: what it is, what happened, what a repeat is told now;
// and finding it.

import {h, fill, get, post, box, state, reason, time, facts, table, link, field,
        choice, trouble, shown, say} from './dom.js';
import {decisionForm} from './decide.js';
import {auditTable} from './lists.js';

const at = (s, name, more) => 'stores/' + encodeURIComponent(s) + '/records/' +
    name + (more || '');

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

function recordFacts(r) {
    const owned = r.state === 'claimed' || r.state === 'dispatched';
    return facts('Record', [
        ['State', state(r)],
        ['What it is about', r.label || '\u2013'],
        [r.state === 'indeterminate' ? 'Why unknown' : 'Reason', reason(r)],
        ['A repeat is told now', told(r.told)],
        ['Realm or group', r.group || '\u2013'],
        ['Attempt', String(r.attempt)],
        ['Fence', h('code', {}, r.fence)],
        ['Granted', time(r.granted, r.now)],
        r.ended && [r.state === 'indeterminate' ? 'Unknown since' : 'Ended',
            time(r.ended, r.now)],
        owned && ['Lease until', time(r.lease_until, r.now)],
        !owned && r.keep_until && ['Kept until', time(r.keep_until, r.now)],
        ['Trace id', r.trace ? h('code', {}, r.trace) : '\u2013'],
        ['Policy', [r.takeover ? 'takeover: a lost owner is replaced' :
            'hold: a lost outcome waits for an operator',
            r.retry_failed ? ', failures may be tried again' : '',
            r.doubt ? '; an earlier attempt may have executed' : '']],
        r.note && ['Decided', r.note],
        ['Store', r.store],
        ['Name', h('code', {}, r.name)],
    ]);
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
    return h('section', {}, h('h2', {}, 'Body'), form, out);
}

// ---- What happened

async function timeline(r) {
    const {events, audit, trouble: bad} = await get(
        at(r.store, r.name, '/timeline'));
    return h('section', {}, h('h2', {}, 'What happened'),
        table('As the record has it', ['Time', 'What'],
              events.map((e) => [time(e.time, r.now), e.text])),
        bad && box('wrong', h('p', {}, 'The audit log cannot be read: ' + bad)),
        audit.length > 0 && auditTable('As the audit log has it', audit));
}

// A lost owner that nobody has reaped, because no gateway is left, may be decided.
const decidable = (r) => r.state === 'indeterminate' ||
    (r.state === 'dispatched' &&
     Date.parse(r.lease_until) < Date.parse(r.now));

const same = (a, b) => a.fence === b.fence && a.state === b.state &&
    a.attempt === b.attempt && a.note === b.note;

export async function record(context) {
    const {page, title, words: [s, name], session, again} = context;
    let r;
    try {
        r = await get(at(s, name));
    } catch (problem) {
        if (problem.code !== 'corrupt')
            throw problem;
        fill(page, title('Record ' + name.slice(0, 8)), box('wrong', h('p', {},
            '\u2716 This record fails its checksum. It counts as taken, so ' +
            'nothing runs twice. Keep a copy of the store and look at the disk.')));
        return;
    }
    let drawings = 0, deciding = false;
    // What was begun last is shown.
    async function draw(said) {
        const mine = ++drawings;
        const lines = await timeline(r);
        if (mine !== drawings)
            return;
        const may = session.rights.includes('decide');
        const kept = r.state === 'completed' && r.told.is !== 'problem';
        fill(page, title('Record ' + name.slice(0, 8)), said,
             recordFacts(r), lines,
             decidable(r) && may && decisionForm(r, busy, done, reload),
             decidable(r) && !may && box('', h('p', {},
                 session.decide ? 'You have not the right to decide.' :
                 'This console only shows. Decide with once resolve ' +
                 name.slice(0, 16) + ' --fence ' + r.fence)),
             kept && session.rights.includes('body') && bodyForm(r));
    }
    function busy(is) {
        deciding = is;
    }
    async function changed(text) {
        await draw(box('waits', h('p', {}, '! ' + text)));
        say(text);
    }
    async function reload(text) {
        r = await get(at(s, name));
        await changed(text);
    }
    async function done(text) {
        r = await get(at(s, name));
        await draw(box('done', h('p', {id: 'decided', tabindex: '-1'},
                                 '\u2713 ' + text)));
        document.getElementById('decided').focus();
        say(text);
    }
    await draw(null);
    again(async () => {
        const before = r;
        const now = await get(at(s, name));
        // What a decision from here changes is shown by done().
        if (deciding || r !== before || same(now, r))
            return;
        r = now;
        await changed('Something has happened to this record; what you see is new.');
    });
}

// ---- Find

const ways = {
    hash: ['The first digits of its hash, as logs have it', [
        ['hash', 'Hash, 8 to 64 digits']]],
    label: ['A part of what it is about (only what waits or is in flight; ' +
        'of others the access log has the hash)', [
        ['label', 'Part of the label']]],
    trace: ['A trace id (only what waits or is in flight)', [
        ['trace', 'Trace id, 32 digits']]],
    request: ['The request that the gateway got', [
        ['scope', 'Scope: who asked, as once_scope has it'],
        ['realm', 'Realm: the host, unless once_realm says otherwise'],
        ['method', 'Method, only under once_key_space path'],
        ['path', 'Path, as it was sent, only there, too'],
        ['key', 'Idempotency-Key']]],
    key: ['A group and a key, of a program', [
        ['group', 'Group (default)'], ['key', 'Key']]],
};

export async function find({page, title, parameters}) {
    const out = h('div', {});
    const fields = h('div', {});
    const draw = (by) => fill(fields, ways[by][1].map(([id, label]) => field(label,
        h('input', {id, name: id, class: 'wide', autocomplete: 'off',
                    value: parameters[id] || '',
                    spellcheck: 'false'}))));
    const by = ways[parameters.by] ? parameters.by : 'hash';
    const form = h('form', {id: 'find'}, h('fieldset', {},
        h('legend', {}, 'What do you have?'),
        Object.entries(ways).map(([way, [text]]) => choice('by', way, text,
            way === by, () => draw(way)))), fields,
    h('p', {}, h('button', {class: 'main', id: 'search'}, 'Find')));
    async function search() {
        try {
            const {now, matches, complete} = await post('find',
                Object.fromEntries(new FormData(form)));
            fill(out, matches.length ? table('Found', ['Record', 'State',
                'What it is about', 'Granted', 'Store'],
            matches.map((r) => [link(r), state(r), r.label || '\u2013',
                time(r.granted, now), r.store])) :
                box('', h('p', {}, 'There is no such record. It may have been ' +
                          'forgotten, or it was never here.')),
            !complete && h('p', {}, 'There may be more: be more exact.'));
            say(matches.length + ' found.');
        } catch (problem) {
            fill(out, trouble(problem));
        }
    }
    form.addEventListener('submit', (e) => {
        e.preventDefault();
        search();
    });
    draw(by);
    fill(page, title('Find'), h('p', {}, 'What you type stands in no address and ' +
         'no log.'), form, out);
    if (parameters.hash)
        await search();
}
