// SPDX-License-Identifier: Apache-2.0
//
// overview.js - what needs a person now, and how the stores are; and one store.

import {Problem, h, update, get, ofStore, mark, box, time, age, span, table, facts, panel,
        pad, many, number, bytes} from './dom.js';
import {needs} from './messages.js';
import {sources} from './metrics.js';
import {sum, sums, spark, total} from './plot.js';

// ---- What needs a person now

const list = (parts) => parts.length < 2 ? parts.join('') :
    parts.slice(0, -1).join(', ') + ' and ' + parts[parts.length - 1];

function call(now) {
    const known = now.stores.filter((s) => s.counts);
    const silent = now.stores.filter((s) => !s.counts).map((s) => s.name);
    const n = known.reduce((sum, s) => sum + s.counts.indeterminate, 0);
    const {outbox, parked, saga} = needs(now.databases);
    const away = now.databases.filter((d) => !d.answers);
    const parts = [n && many(n, 'request'), outbox + parked && many(outbox + parked,
        'message'), saga && many(saga, 'saga')].filter(Boolean);
    const one = n + outbox + parked + saga === 1;
    const oldest = known.map((s) => s.oldest_waiting).filter(Boolean).sort()[0];
    return [
        silent.length > 0 && box('wrong', h('p', {}, '\u2716 What waits is not ' +
            'known of: ' + silent.join(', ') + '. Look whether its server or its ' +
            'disk is there.')),
        away.map((d) => box('wrong', h('p', {}, '\u2716 The database ' + d.name +
            ' does not answer: ' + d.trouble))),
        parts.length > 0 ? h('section', {class: 'call'}, h('div', {},
            h('strong', {}, list(parts) + (one ? ' needs' : ' need') +
                ' your decision'),
            n > 0 && h('p', {}, 'The oldest has waited ', age(oldest, now.now), '. Until ' +
                'you decide, callers who repeat are told \u201coutcome ' +
                'unknown\u201d.'), n === 0 && h('p', {}, 'They stay where they ' +
                'are until an operator decides.')),
        h('a', {class: 'button main', 'data-key': 'decide', href: n ? '#/waiting' :
            outbox ? '#/outbox' : parked ? '#/parked' : '#/sagas'},
        one ? 'Decide it' : 'Decide them')) :
            !silent.length && !away.length && h('section', {class: 'call done'}, h('div', {},
                h('strong', {}, '\u2713 Nothing waits for a decision.'),
                h('p', {}, 'Every outcome is known. There is nothing to do.')))];
}

// ---- The last hour, from gateways if there are any

// [name, its counter, of which labels, colour]
const told = [
    ['Requests', 'once_requests_total', null, 'c1'],
    ['Replayed, not run twice', 'once_requests_total',
        (l) => l.status === 'replayed', 'c2'],
    ['Same key, other request', 'once_requests_total',
        (l) => l.status === 'mismatch', 'c5'],
    ['Outcome unknown', 'once_attempts_total',
        (l) => l.outcome === 'indeterminate', 'c3'],
];

const card = (name, value, plot, key) => h('section', {class: 'panel card',
    'data-key': 'card-' + (key || name)}, h('span', {class: 'soft'}, name),
h('span', {class: 'value'}, value), plot);

const seenFor = (m) => Date.parse(m.now) - Date.parse(m.since);

function cards(m) {
    if (m.sources.length)
        return h('div', {class: 'grid'}, told.map(([name, counter, where, colour]) => {
            const values = sum(m, counter, where);
            return card(name, number(total(values)),
                        spark(m, name, values, colour, true));
        }));
    // A minute that has just begun has no number yet: that of the last one stands.
    const lately = (v) => [...v.slice(0, 59), v[59] ?? v[58]];
    const most = (what) => m.stores.reduce((all, s) => lately(s[what]).map((v, i) =>
        v === null ? all[i] : (all[i] || 0) + v), Array(60).fill(null));
    return h('div', {class: 'grid'}, [['Outcomes unknown', 'waiting', 'c3'],
        ['In flight', 'in_flight', 'c5']].map(([name, what, colour]) => {
        const values = most(what);
        return card(name, m.stores.some((s) => lately(s[what])[59] === null) ?
            '\u2013' : number(values[59]),
                    spark(m, name, values, colour, false));
    }));
}

function routes(m) {
    const of = (l) => JSON.stringify([l.store, l.route]);
    const all = told.map(([, counter, where]) => sums(m, counter, of, where));
    const keys = [...new Set(all.flatMap((one) => [...one.keys()]))].sort(
        (a, b) => total(all[0].get(b) || []) - total(all[0].get(a) || []));
    return keys.length > 0 && panel('Routes', h('a', {href: '#/metrics',
        'data-key': 'to-metrics'}, 'All metrics'), table('Routes, last hour',
        ['Route', ...told.map(([name]) => name)], keys.map((key) => {
            const [store, route] = JSON.parse(key);
            return {key: 'route-' + key, cells: [
                [{class: 'text'}, h('b', {}, route === '-' ? 'without a name' :
                    route), h('span', {class: 'hint'}, 'store ' + store)],
                ...told.map(([name, , , colour], i) => {
                    const values = all[i].get(key) || Array(60).fill(0);
                    return [{class: 'tight'}, h('div', {class: 'beside'},
                        h('span', {class: 'figures'}, number(total(values))),
                        spark(m, name, values, colour, true))];
                })]};
        })));
}

// ---- Stores

function trouble(s) {
    const gap = s.head && s.head.gap !== 'none';
    return [
        !s.answers && box('wrong', h('p', {},
            '\u2716 It does not answer: ' + s.trouble)),
        !s.durable && box('waits', h('p', {},
            '! Not durable: ' + s.caveat)),
        gap && box('waits', h('p', {}, '! This store was restored from a copy. ' +
            'What was recorded between ', time(s.head.gap_from), ' and the ' +
            'restore is not in it. Until ', time(s.head.gap_until), ' a key ' +
            'that is not there is ' + (s.head.gap === 'hold' ?
                'unknown: nothing is sent.' :
                'taken for new: it may execute twice.'))),
        s.corrupt_seen > 0 && box('wrong', h('p', {}, '\u2716 Records that fail ' +
            'their checksum were seen. They count as taken. Run once verify.')),
    ];
}

function health(s) {
    if (!s.answers)
        return mark('wrong', 'does not answer');
    if (s.corrupt_seen > 0)
        return mark('wrong', 'corrupt records');
    if (s.head && s.head.gap !== 'none')
        return mark('waits', 'restored, with a gap');
    return s.durable ? mark('done', 'healthy') : mark('waits', 'not durable');
}

const size = (s) => s.bytes === null || s.bytes === undefined ? '\u2013' :
    bytes(s.bytes) + (s.free === null ? '' : ', ' + bytes(s.free) + ' free');

const rest = (c) => !c ? '\u2013' :
    (c.rest_estimated ? 'about ' : '') + number(c.rest);

function waits(s) {
    if (!s.counts)
        return 'not known';
    return h('a', {href: '#/waiting?store=' + s.name, 'data-key': 'w-' + s.name},
             number(s.counts.indeterminate));
}

function flies(s) {
    if (!s.counts)
        return 'not known';
    return h('a', {href: '#/live?store=' + s.name, 'data-key': 'l-' + s.name},
             number(s.counts.claimed + s.counts.dispatched));
}

const tight = (...inside) => [{class: 'tight figures'}, ...inside];

function stores(now) {
    return panel('Stores', null, table('Stores', ['Store', 'State', 'Waiting',
        'In flight', 'Other records', 'Size'], now.stores.map((s) => ({
        key: 'store-' + s.name,
        cells: [[{class: 'text'}, h('a', {href: '#/store/' + s.name,
            'data-key': s.name}, h('b', {}, s.name)),
        h('span', {class: 'hint'}, s.driver + (!s.durable ? ': ' + s.caveat :
            s.answers ? ', durable' : ''))],
        tight(health(s)), tight(waits(s)), tight(flies(s)),
        tight(rest(s.counts)), tight(size(s))]}))));
}

export async function overview({page, title, now, again}) {
    const body = h('div', {class: 'page'});
    async function look() {
        const m = await get('metrics');
        update(body, call(now()), h('div', {}, h('h2', {class: 'over'}, 'The last ' +
            'hour', seenFor(m) < 3600000 && h('span', {class: 'hint'}, 'as far as ' +
            'this console has seen it, ' + span(seenFor(m)))), cards(m)), routes(m),
        stores(now()), sources(m));
    }
    if (!now().now)
        throw new Problem(0, {});
    page.append(title('Overview'), body);
    await look();
    again(look);
}

// ---- One store

export async function store({page, title, words, again}) {
    const name = words[0];
    const body = h('div', {class: 'page'});
    async function look() {
        const s = await get(ofStore(name));
        const now = new Date().toISOString();
        update(body, trouble(s), panel('What it holds', health(s), pad(facts([
            ['Waiting for a decision', waits(s)],
            ['Oldest of them', time(s.oldest_waiting, now)],
            ['In flight', flies(s)],
            ['Other records', rest(s.counts)],
            ['Size', size(s)],
            ['Durable', s.durable ? 'yes: an acknowledged record survives a ' +
                'crash' : 'no: an acknowledged record may be lost'],
            ['Kind', s.driver],
            s.head && ['Restored', s.head.incarnation > 1 ?
                many(s.head.incarnation - 1, 'time') : 'never'],
            s.head && ['Id', h('code', {}, s.head.id)],
            ['Unanswered', many(s.unanswered, 'batch', 'batches') +
                ' since the console started'],
            s.event && ['The last event', s.event],
        ]))));
    }
    page.append(title('Store ' + name, null, h('a', {class: 'way', href: '#/'},
                                               '\u2039 Overview')), body,
    panel('On the store\u2019s host', null, pad(
        h('p', {}, 'What reads or changes a whole store is done there:'),
        h('pre', {}, 'once check     a canary: claim, complete, replay\n' +
           'once verify    every record\u2019s checksum\n' +
           'once stats     records by state and realm\n' +
           'once backup    a copy'))));
    await look();
    again(look);
}

