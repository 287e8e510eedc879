// SPDX-License-Identifier: Apache-2.0
//
// lists.js - the overview, what waits, what is in flight, the audit log, and one
// store.

import {h, fill, get, query, box, state, reason, reasons, freeing, time, age,
        span, table, facts, link, field, say} from './dom.js';

const PAGE = 50;

// ---- Overview and store

function gapOf(s) {
    if (!s.head || s.head.gap === 'none')
        return null;
    return box('waits', h('p', {}, '! This store was restored from a copy. What ' +
        'was recorded between ', time(s.head.gap_from), ' and the restore is not ' +
        'in it. Until ', time(s.head.gap_until), ' a key that is not there is ' +
        (s.head.gap === 'hold' ? 'unknown: nothing is sent.' :
            'taken for new: it may execute twice.')));
}

function troubleOf(s) {
    return [
        !s.answers && box('wrong', h('p', {},
            '\u2716 It does not answer: ' + s.trouble)),
        !s.durable && box('waits', h('p', {},
            '! Not durable: ' + s.caveat)),
        gapOf(s),
        s.corrupt_seen > 0 && box('wrong', h('p', {}, '\u2716 Records that fail ' +
            'their checksum were seen. They count as taken. Run once verify.')),
    ];
}

function waitingText(s) {
    const n = s.counts && s.counts.indeterminate;
    if (!s.counts)
        return 'not known';
    return h('a', {href: '#/waiting?store=' + s.name, 'data-key': 'w-' + s.name,
                   class: n ? 'mark waits' : ''},
             n ? '? ' + n + ' unknown' : 'none');
}

function storeFacts(s, now) {
    const c = s.counts;
    return facts('Store ' + s.name, [
        ['Waiting for a decision', waitingText(s)],
        ['Oldest of them', time(s.oldest_waiting, now)],
        ['In flight', c ? h('a', {href: '#/live?store=' + s.name,
                                  'data-key': 'l-' + s.name},
                            String(c.claimed + c.dispatched)) : 'not known'],
        ['Other records', c ? (c.rest_estimated ? 'about ' : '') + c.rest :
            'not known'],
        ['Durable', s.durable ? 'yes: an acknowledged record survives a crash' :
            'no: an acknowledged record may be lost'],
        ['Kind', s.driver],
        s.head && ['Incarnation', String(s.head.incarnation)],
        s.head && ['Id', h('code', {}, s.head.id)],
        ['Unanswered batches', s.unanswered + ' since the console started'],
        s.event && ['The last event', s.event],
    ]);
}

export async function overview({page, title, again}) {
    const body = h('div', {});
    async function look() {
        const {now, stores} = await get('stores');
        const n = stores.reduce(
            (sum, s) => sum + (s.counts ? s.counts.indeterminate : 0), 0);
        const silent = stores.filter((s) => !s.counts).map((s) => s.name);
        fill(body, silent.length > 0 && box('wrong', h('p', {}, '\u2716 What ' +
            'waits is not known of: ' + silent.join(', ') + '.')), n ? box('waits', h('p', {}, '? ' + n + (n === 1 ?
            ' request has an unknown outcome. ' :
            ' requests have an unknown outcome. '),
            h('a', {href: '#/waiting', 'data-key': 'decide'}, 'Look at them'))) :
            !silent.length && box('done', h('p', {},
                '\u2713 Nothing waits for a decision.')),
        stores.map((s) => h('section', {},
            h('h2', {}, h('a', {href: '#/store/' + s.name, 'data-key': s.name},
                          s.name)), troubleOf(s), storeFacts(s, now))));
    }
    fill(page, title('Overview'), body);
    await look();
    again(look);
}

export async function store({page, title, words, again}) {
    const name = words[0];
    const body = h('div', {});
    async function look() {
        const s = await get('stores/' + encodeURIComponent(name));
        fill(body, troubleOf(s), storeFacts(s, null));
    }
    fill(page, title('Store ' + name), body,
         h('h2', {}, 'On the store\u2019s host'),
         h('p', {}, 'What reads or changes a whole store is done there:'),
         h('pre', {}, 'once check     a canary: claim, complete, replay\n' +
           'once verify    every record\u2019s checksum\n' +
           'once stats     records by state and realm\n' +
           'once backup    a copy'));
    await look();
    again(look);
}

// ---- Waiting and in flight

function pick(id, label, options, value) {
    return field(label, h('select', {id, name: id}, options.map(
        ([v, text]) => h('option', {value: v, selected: v === value}, text))));
}

function filterForm(kind, session, p) {
    const form = h('form', {class: 'row', 'aria-label': 'Filter'},
        session.stores.length > 1 && pick('store', 'Store',
            session.stores.map((s) => [s, s]), p.store),
        field('Realm', h('input', {id: 'realm', name: 'realm', maxlength: '32',
                                   value: p.realm || ''})),
        kind === 'waiting' && pick('reason', 'Reason', [['', 'any'],
            ...Object.entries(reasons).filter(([r]) => !freeing.includes(r))
                .map(([r, t]) => [r, r + ': ' + t])],
            p.reason || ''),
        pick('older', 'Older than', [['', 'any age'], ['60', '1 minute'],
            ['600', '10 minutes'], ['3600', '1 hour'], ['86400', '1 day']],
            p.older || ''),
        h('p', {}, h('button', {}, 'Filter')));
    form.addEventListener('submit', (e) => {
        e.preventDefault();
        location.hash = '#/' + kind + '?' + query(
            Object.fromEntries(new FormData(form)));
    });
    return form;
}

function waitingRows(records, now) {
    return records.map((r) => [age(r.ended, now), link(r), r.label || '\u2013',
        r.group || '\u2013', String(r.attempt), reason(r)]);
}

function liveRows(records, now) {
    return records.map((r) => [age(r.granted, now), link(r), r.label || '\u2013',
        r.group || '\u2013', String(r.attempt), state(r),
        Date.parse(r.lease_until) > Date.parse(now) ?
            span(Date.parse(r.lease_until) - Date.parse(now)) + ' left' :
            'expired']);
}

const lists = {
    waiting: {
        title: 'Waiting',
        text: 'It is unknown whether these took effect: each was sent, and its ' +
            'answer was lost. Repeats get 409 until an operator decides. Ask ' +
            'the service about what stands under "What it is about", then open ' +
            'the record.',
        none: '\u2713 Nothing waits for a decision.',
        caption: 'Unknown outcomes, the oldest first',
        heads: ['Unknown for', 'Record', 'What it is about', 'Realm', 'Attempt',
                'Why'],
        rows: waitingRows,
    },
    live: {
        title: 'In flight',
        text: 'These are being carried out. An owner that lives renews its ' +
            'lease; when a lease has expired the outcome becomes unknown.',
        none: 'Nothing is in flight.',
        caption: 'In flight, the earliest lease first',
        heads: ['Since', 'Record', 'What it is about', 'Realm', 'Attempt',
                'State', 'Lease'],
        rows: liveRows,
    },
};

// An empty list says no more than what was asked for.
function nothing(what, filter, after, s) {
    const where = s ? ' In the store ' + s + '.' : '';
    if (after)
        return box('', h('p', {}, 'No more.'));
    if (Object.values(filter).some((v) => v))
        return box('', h('p', {id: 'none-fits'}, 'Nothing fits this filter.' +
            where + ' What does not fit it is not shown.'));
    return box('done', h('p', {}, what.none + where));
}

async function list(kind, {page, title, session, parameters, again}) {
    const what = lists[kind];
    const p = {...parameters, store: parameters.store || session.stores[0]};
    const body = h('div', {});
    const {store: s, after, ...filter} = p;
    async function look() {
        const {now, records, next} = await get('stores/' + encodeURIComponent(s) +
            '/records?' + query({...filter, after, what: kind, limit: PAGE}));
        fill(body, records.length ?
            table(what.caption, what.heads, what.rows(records, now)) :
            nothing(what, filter, after, session.stores.length > 1 && s),
        h('p', {},
          after && h('a', {href: '#/' + kind + '?' + query({store: s, ...filter}),
                           id: 'first'}, 'The first page'), ' ',
          next && h('a', {href: '#/' + kind + '?' +
              query({store: s, ...filter, after: next}), id: 'next'},
                    'The next page')),
        kind === 'waiting' && records.length > 0 &&
            session.rights.includes('decide') && h('p', {}, h('a', {
                href: '#/batch?' + query({store: s, ...filter}), id: 'many'},
            'Decide many of these at once')));
    }
    fill(page, title(what.title), h('p', {}, what.text),
         filterForm(kind, session, p), body);
    await look();
    again(look);
}

export const waiting = (context) => list('waiting', context);
export const live = (context) => list('live', context);

// ---- Audit

const words = {resolve: 'decided', reopen: 'reopened', acknowledge:
    'looks into it', body: 'saw the body', forget: 'forgot', purge: 'purged'};

export function auditTable(caption, lines) {
    return table(caption, ['Number', 'Time', 'Who', 'What', 'Step', 'Record',
        'Why'],
    lines.map((l) => [String(l.seq), time(l.time),
        (l.user || (l.uid === undefined ? '\u2013' : 'uid ' + l.uid)) +
            (l.way ? ', ' + l.way : ''),
        (words[l.action] || l.action) + (l.kind ? ': ' + l.kind : ''),
        l.step + (l.detail ? ': ' + l.detail : ''),
        l.name ? h('a', {href: '#/find?by=hash&hash=' + l.name, class: 'digits',
                         'data-key': 'audit-' + l.seq}, l.name.slice(0, 16)) :
            '\u2013', l.why || '\u2013']));
}

export async function audit({page, title, parameters}) {
    const {lines, next} = await get('audit?' + query(
        {...parameters, limit: PAGE}));
    fill(page, title('Audit'),
         h('p', {}, 'Who decided what, and why; the newest first. Before a ' +
           'decision its intent is written, after it what came of it. once ' +
           'audit verify tells whether the log is whole.'),
         lines.length ? auditTable('Audit log', lines) :
             box('', h('p', {}, Object.values(parameters).some((v) => v) ?
                 'There are no more lines that fit.' :
                 'Nothing was decided yet.')),
         next && h('p', {}, h('a', {href: '#/audit?' + query(
             {...parameters, before: next}), id: 'next'}, 'Older lines')));
    say(lines.length + ' lines.');
}
