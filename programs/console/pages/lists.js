// SPDX-License-Identifier: Apache-2.0
//
// lists.js - what is in flight, and the audit log.

import {h, update, get, post, ofStore, query, box, state, time, age, about, span,
        table, rowsOf, link, record, field, pick, say} from './dom.js';

const PAGE = 50;

// ---- In flight

function left(r, now) {
    const ms = Date.parse(r.lease_until) - Date.parse(now);
    return ms > 0 ? span(ms) + ' left' : 'expired';
}

function liveRows(records, now) {
    return records.map((r) => ({key: 'row-' + r.name, cells: [
        [{class: 'text'}, link(r, about(r)), h('span', {class: 'hint'},
            h('bdi', {}, r.group || 'no realm'),
            r.attempt > 1 ? ', attempt ' + r.attempt : '')],
        [{class: 'tight'}, state(r)],
        [{class: 'tight figures'}, age(r.granted, now, ' ago')],
        [{class: 'tight figures'}, left(r, now)],
        [{class: 'tight'}, h('code', {}, r.name.slice(0, 16))]]}));
}

function liveFilter(session, p) {
    const form = h('form', {class: 'row', 'aria-label': 'Filter'},
        session.stores.length > 1 && pick('store', 'Store',
            session.stores.map((s) => [s, s]), p.store),
        field('Realm', h('input', {id: 'realm', name: 'realm', maxlength: '32',
                                   value: p.realm || ''})),
        pick('older', 'Runs for', [['', 'any time'], ['60', 'over 1 minute'],
            ['600', 'over 10 minutes'], ['3600', 'over 1 hour']], p.older || ''),
        h('button', {}, 'Filter'));
    form.addEventListener('submit', (e) => {
        e.preventDefault();
        location.hash = '#/live?' + query(Object.fromEntries(new FormData(form)));
    });
    return form;
}

// An empty list says no more than what was asked for.
function nothing(filter, after, where) {
    if (after)
        return box('', h('p', {}, 'No more.'));
    if (Object.values(filter).some((v) => v))
        return box('', h('p', {id: 'none-fits'}, 'Nothing fits this filter.' +
            where + ' What does not fit it is not shown.'),
        h('p', {}, h('a', {href: '#/live'}, 'Show all')));
    return box('', h('p', {}, 'Nothing is in flight.' + where));
}

export async function live({page, title, session, parameters, again}) {
    const {store: s = session.stores[0], after, ...filter} = parameters;
    const at = (change) => '#/live?' + query({store: s, ...filter, ...change});
    const body = h('div', {class: 'panel'});
    async function look() {
        const {now, records, next} = await get(ofStore(s) + '/records?' +
            query({...filter, after, what: 'live', limit: PAGE}));
        update(body, records.length ? table('In flight', ['What it is about',
            'State', 'Since', 'Lease', 'Record'], liveRows(records, now)) :
            nothing(filter, after, session.stores.length > 1 ?
                ' In the store ' + s + '.' : ''),
        (after || next) && h('div', {class: 'bar'},
            after && h('a', {class: 'button', href: at({}), id: 'first'},
                       '\u2039 The first'),
            next && h('a', {class: 'button', href: at({after: next}), id: 'next'},
                      'Next \u203a')));
    }
    page.append(title('In flight', 'These are being carried out. An owner that ' +
        'lives renews its lease; when a lease has expired the outcome becomes ' +
        'unknown.'), liveFilter(session, {...filter, store: s}), body);
    await look();
    again(look);
}

// ---- The audit log

const words = {resolve: 'decided', reopen: 'reopened', acknowledge:
    'looks into it', body: 'saw the body', forget: 'forgot', purge: 'purged'};
const steps = {intent: 'tried', done: 'done', refused: 'refused',
               unknown: 'unknown'};
const kinds = {intent: '', done: 'done', refused: 'waits', unknown: 'wrong'};

export const whoOf = (l) => (l.user || (l.uid === undefined ? '\u2013' :
    'uid ' + l.uid));

export const didOf = (l) => (words[l.action] || l.action.replace('-', ' ')) +
    (l.kind ? ': ' + l.kind : '');

// The records that lines are about, as far as a store has them: by name.
async function recordsOf(lines, alive) {
    const known = new Map();
    for (const hash of new Set(lines.map((l) => l.name).filter(
        (name) => name && name.length === 64))) {
        const {matches: [r], silent} = await post('find', {by: 'hash', hash});
        if (r)
            known.set(hash, r);
        if (silent.length || !alive()) // it would take long
            break;
    }
    return known;
}

const nameCell = (l, r) => [h('a', {'data-key': 'audit-' + l.seq, href: r ?
    record(r) : '#/find?by=hash&hash=' + l.name},
r && r.label ? about(r) : h('code', {}, l.name.slice(0, 16))),
r && r.label && h('span', {class: 'hint'}, h('code', {}, l.name.slice(0, 16)))];

function auditRows(lines, known) {
    return rowsOf(lines.map((l) => [
        [{class: 'tight figures'}, String(l.seq)],
        [{class: 'figures'}, time(l.time)],
        [{}, whoOf(l), l.way && h('span', {class: 'hint'}, l.way)],
        [{class: 'tight'}, didOf(l), ' ', h('span', {
            class: 'mark ' + (kinds[l.step] || '')}, steps[l.step] || l.step),
        l.detail && h('span', {class: 'hint'}, l.detail)],
        [{class: 'text'}, l.why || '\u2013'],
        [{class: known.has(l.name) ? 'text' : 'tight'}, l.name ?
            nameCell(l, known.get(l.name)) : '\u2013']]));
}

function auditFilter(p) {
    const form = h('form', {class: 'row', 'aria-label': 'Filter'},
        pick('action', 'What', [['', 'everything'], ...Object.entries(words)],
             p.action || ''),
        field('Who', h('input', {id: 'who-did', name: 'who', maxlength: '64',
                                 autocomplete: 'off', value: p.who || ''})),
        field('Record', h('input', {id: 'name', name: 'name', maxlength: '64',
            pattern: '[0-9a-f]*', title: 'its first digits', autocomplete: 'off',
            spellcheck: 'false', value: p.name || ''})),
        h('button', {}, 'Filter'));
    form.addEventListener('submit', (e) => {
        e.preventDefault();
        location.hash = '#/audit?' + query(Object.fromEntries(new FormData(form)));
    });
    return form;
}

export async function audit({page, title, parameters, alive, early}) {
    const {lines, next} = await get('audit?' + query(
        {...parameters, limit: PAGE}));
    const {before, ...filter} = parameters;
    const filtered = Object.values(filter).some((v) => v);
    const body = h('div', {});
    const draw = (known) => update(body, lines.length ? h('section', {class: 'panel'},
        table('Audit log', ['Number', 'Time', 'Who', 'What', 'Why', 'Record'],
              auditRows(lines, known)),
        (before || next) && h('div', {class: 'bar'},
            before && h('a', {class: 'button', id: 'first',
                              href: '#/audit?' + query(filter)}, '\u2039 The newest'),
            next && h('a', {class: 'button', id: 'next', href: '#/audit?' + query(
                {...filter, before: next})}, 'Older \u203a'))) :
        box('', h('p', {}, before || filtered ? 'There are no more lines that fit.' :
            'Nothing was decided yet.'),
        filtered && h('p', {}, h('a', {href: '#/audit'}, 'Show all'))));
    page.append(title('Audit log', 'Who decided what, and why; the newest first, ' +
        'over all files of the log. once audit verify tells whether it is whole.'),
    auditFilter(filter), body);
    draw(new Map());
    early();
    draw(await recordsOf(lines, alive).catch(() => new Map()));
    say(lines.length + ' lines.');
}
