// SPDX-License-Identifier: Apache-2.0
//
// waiting.js - what waits for a decision: all of it that there is room for, so
// that it can be searched, sorted, counted and ticked. It is read page by page,
// and how far that is can be seen.

import {h, fill, update, get, ofStore, query, box, reason, reasons, freeing,
        age, about, plain, table, link, pick, many, number, say} from
    './dom.js';
import {whoOf} from './lists.js';

const READ = 200;    // records of one question
const KEPT_MAX = 5000;
const PAGE = 25;
const AGAIN_MAX = 1000; // as many are read again by themselves
export const BATCH_MAX = 500;

// ---- All that waits

async function readStore(s, it, progress, wanted) {
    let after = null;
    do {
        const {now, records, next} = await get(ofStore(s) + '/records?' + query(
            {what: 'waiting', limit: READ, after}));
        it.all.push(...(wanted ? records.filter(wanted(now)) : records));
        it.read += records.length;
        it.now = now;
        after = next;
        if (it.all.length >= KEPT_MAX || (progress && !progress(it.read)))
            break;
    } while (after);
    it.complete = it.complete && !after;
}

// Reads what waits in these stores; `progress` is told how many were read and
// says whether to go on. Of a store that does not answer nothing is known.
// With `wanted` only what that wants is kept.
export async function gather(stores, progress, wanted) {
    const it = {all: [], read: 0, now: null, complete: true, silent: []};
    for (const s of stores)
        try {
            await readStore(s, it, progress, wanted);
        } catch (problem) {
            if (problem.status !== 503)
                throw problem;
            it.silent.push(s);
        }
    return it;
}

export const silence = ({silent}) => silent.length > 0 && box('wrong', h('p', {},
    '\u2716 What waits is not known of: ' + silent.join(', ') + '. It does not ' +
    'answer; look whether its server or its disk is there.'));

// ---- What is asked for, in the address; what was typed, in this tab only

const typed = () => sessionStorage.getItem('waiting') || '';

const orders = {
    old: ['the oldest first', (r) => r.ended || ''],
    'new': ['the newest first', (r) => r.ended || '', -1],
    what: ['by what it is about', (r) => plain(r.label || '')],
    realm: ['by realm', (r) => r.group || ''],
    why: ['by reason', (r) => reason(r)],
};

export function fits(p, text, now) {
    const t = text.toLowerCase();
    return (r) => (!p.store || r.store === p.store) &&
        (!p.realm || r.group === p.realm) &&
        (!p.reason || r.reason === p.reason) &&
        (!p.older || Date.parse(now) - Date.parse(r.ended) > 1000 * p.older) &&
        (!t || [plain(r.label || ''), r.label, r.group, r.name, r.trace].some(
            (x) => x && x.toLowerCase().includes(t)));
}

function sorted(list, by) {
    const [, of, way = 1] = orders[by] || orders.old;
    return [...list].sort((a, b) => of(a) < of(b) ? -way : of(a) > of(b) ? way : 0);
}

// ---- What is ticked: by its name, in this tab only, until it was decided

export const ticked = {
    all: () => new Set(JSON.parse(sessionStorage.getItem('ticked') || '[]')),
    set: (names) => sessionStorage.setItem('ticked', JSON.stringify([...names])),
};

// ---- The page

const ages = [['', 'any age'], ['60', 'over 1 minute'], ['600', 'over 10 minutes'],
    ['3600', 'over 1 hour'], ['86400', 'over 1 day']];

function chips(all, p) {
    const at = (change) => '#/waiting?' + query({...p, page: '', ...change});
    const count = (of) => all.reduce((n, r) => n.set(of(r), (n.get(of(r)) || 0) + 1),
                                     new Map());
    const chip = (text, n, href, on, key) => h('li', {}, h('a', {class: 'chip', href,
        'aria-current': on ? 'true' : null, 'data-key': key}, text, ' ',
    h('span', {}, number(n))));
    const by = count((r) => r.reason), of = count((r) => r.store);
    return h('ul', {class: 'chips', 'aria-label': 'Filter'},
        chip('All', all.length, at({store: '', reason: '', realm: '', older: ''}),
             !p.store && !p.reason && !p.realm && !p.older, 'chip-all'),
        of.size > 1 && [...of].sort().map(([s, n]) => chip('store ' + s, n, at(
            {store: p.store === s ? '' : s}), p.store === s, 'chip-s-' + s)),
        Object.keys(reasons).filter((x) => !freeing.includes(x) && (by.has(x) ||
            p.reason === x)).map((x) => chip(reasons[x], by.get(x) || 0, at(
            {reason: p.reason === x ? '' : x}), p.reason === x, 'chip-' + x)),
        p.realm && chip('realm ' + p.realm, all.filter((r) => r.group === p.realm)
            .length, at({realm: ''}), true, 'chip-realm'));
}

// Who looks into this attempt.
function look(r, now, looks) {
    const l = looks.get(r.name);
    return l && l.attempt === r.attempt && h('span', {class: 'hint looks'},
        whoOf(l) + ' looks into it, ', age(l.time, now, ' ago'));
}

function rows(list, now, chosen, tick, looks) {
    return list.map((r) => ({key: 'row-' + r.name, cells: [
        ...(chosen ? [[{class: 'tick', 'data-head': null}, h('input', {
            type: 'checkbox', 'data-key': 'tick-' + r.name,
            'aria-label': 'Tick ' + (r.label ? plain(r.label) : r.name.slice(0, 16)),
            checked: chosen.has(r.name), onchange: (e) => tick(
                [r.name], e.target.checked)})]] : []),
        [{class: 'text'}, link(r, about(r)), h('span', {class: 'hint'},
            h('bdi', {}, r.group || 'no realm'),
            r.attempt > 1 ? ', attempt ' + r.attempt : ''), look(r, now, looks)],
        [{class: 'why'}, reason(r)],
        [{class: 'tight figures'}, age(r.ended, now, ' ago')],
        [{class: 'tight'}, h('code', {}, r.name.slice(0, 16))]]}));
}

const heads = (may) => [...(may ? [''] : []), 'What it is about',
    'Why it is unknown', 'Since', 'Record'];

// An empty list says no more than what was asked for.
function nothing(it, where) {
    const all = it.sought ? it.read : it.all.length;
    if (!it.complete)
        return box('waits', h('p', {id: 'none-fits'}, '! None of the ' +
            number(all) + ' that were read fits this filter. More wait.'));
    if (all > 0)
        return box('', h('p', {id: 'none-fits'}, 'Nothing fits this filter. ' +
            many(all, 'request') + (all === 1 ? ' waits' : ' wait') +
            ', and what does not fit is not shown. '),
        h('p', {}, h('a', {href: '#/waiting', id: 'show-all'}, 'Show all')));
    return !it.silent.length && box('done', h('p', {},
        '\u2713 Nothing waits for a decision' + where + '.'));
}

function pages(p, at, last) {
    const to = (n) => '#/waiting?' + query({...p, page: n > 1 ? n : ''});
    return h('span', {class: 'row'},
        at > 1 && h('a', {class: 'button', href: to(at - 1), id: 'previous'},
                    '\u2039 Previous'),
        at < last && h('a', {class: 'button', href: to(at + 1), id: 'next'},
                       'Next \u203a'));
}

// What is shown of what was read.
function view(it, p, may, tick, looks) {
    const chosen = ticked.all();
    const where = p.store ? ' in the store ' + p.store : '';
    const list = sorted(it.all.filter(fits(p, typed(), it.now)), p.sort);
    const last = Math.max(1, Math.ceil(list.length / PAGE));
    const at = Math.min(last, Math.max(1, Number(p.page) || 1));
    const here = list.slice((at - 1) * PAGE, at * PAGE);
    const n = it.all.filter((r) => chosen.has(r.name)).length;
    if (!list.length)
        return nothing(it, where);
    return h('section', {class: 'panel'},
        table('Unknown outcomes', heads(may), rows(here, it.now, may && chosen, tick,
                                                    looks)),
        h('div', {class: 'bar'}, h('span', {class: 'soft'},
            number((at - 1) * PAGE + 1) + '\u2013' +
            number((at - 1) * PAGE + here.length) + ' of ' + number(list.length)),
        h('span', {class: 'row'}, pages(p, at, last),
          may && n === 0 && h('button', {type: 'button', id: 'tick-all',
              onclick: () => tick(list.slice(0, BATCH_MAX).map((r) => r.name),
                                  true)}, 'Tick ' + (list.length > BATCH_MAX ?
              'the first ' + BATCH_MAX : 'all ' + number(list.length))))),
        may && n > 0 && h('div', {class: 'bar sticks'},
            h('b', {}, number(n) + ' ticked'), h('span', {class: 'row'},
            h('button', {type: 'button', id: 'untick',
                         onclick: () => tick([...chosen], false)}, 'Untick all'),
            h('a', {class: 'button main', id: 'many', href: '#/batch?ticked=1'},
              'Decide the ticked\u2026'))));
}

function filters(p, changed) {
    const go = (change) => {
        location.hash = '#/waiting?' + query({...p, page: '', ...change});
    };
    const search = h('input', {id: 'text', type: 'search', maxlength: '128',
        autocomplete: 'off', spellcheck: 'false', value: typed(),
        oninput: (e) => {
            sessionStorage.setItem('waiting', e.target.value.trim());
            changed();
        }});
    return h('form', {class: 'row', 'aria-label': 'Search and order',
                      onsubmit: (e) => e.preventDefault()},
        h('div', {class: 'field'}, h('label', {for: 'text'}, 'Search'), search),
        pick('older', 'Waits for', ages, p.older || '',
             (e) => go({older: e.target.value})),
        pick('sort', 'Order', Object.entries(orders).map(([v, [t]]) => [v, t]),
             p.sort || 'old', (e) => go({sort: e.target.value})));
}

export async function waiting({page, title, session, parameters: p, now, early,
                               alive, again}) {
    const may = session.rights.includes('decide');
    const says = h('span', {}), body = h('div', {class: 'page'}), place = h('div', {});
    const stores = session.stores.filter((s) => !p.store || s === p.store);
    const total = () => now().stores.reduce((n, s) => stores.includes(s.name) &&
        s.counts ? n + s.counts.indeterminate : n, 0);
    let it = null, mark = '', seeking = false, seen = false;
    const looks = new Map(); // who looks into what, by the record's name
    // What is asked for, to know that it has changed.
    const asked = () => JSON.stringify([p.store, p.realm, p.reason, p.older, typed()]);
    const filtered = () => p.realm || p.reason || p.older || typed();

    // Enough to see that a long list has changed.
    const known = () => now().stores.map((s) => [s.name, s.oldest_waiting,
        s.counts && s.counts.indeterminate]).join();
    function tick(names, on) {
        const chosen = ticked.all();
        names.forEach((n) => on ? chosen.add(n) : chosen.delete(n));
        ticked.set(chosen);
        draw();
    }
    function draw() {
        it.now = now().now || it.now;
        const n = it.complete && !it.sought ? it.all.length :
            Math.max(total(), it.all.length);
        update(says, n ? many(n, 'request') + ' whose outcome the gateway could ' +
            'not learn. Ask the service what became of each, then decide.' : '',
        it.sought ? ' ' + number(it.read) + ' of them were looked at. ' :
            !it.complete && ' The oldest ' + number(it.all.length) +
            ' of them are listed. ',
        (it.sought || it.all.length > AGAIN_MAX) && known() !== mark && h('button', {
            type: 'button', class: 'small', id: 'read-again', onclick: read},
        'It has changed: read again'));
        update(place, chips(it.all, p));
        update(body, silence(it), !it.complete && !it.sought && filtered() &&
            h('p', {}, h('button', {type: 'button', id: 'search-all',
                onclick: seek}, 'Search all ' + number(total()))),
        view(it, p, may, tick, looks));
    }
    // At first all that the audit log has of it; then what is new there.
    async function seeLooks() {
        try {
            const {lines} = await get('audit?' + query({limit: READ, action:
                seen ? '' : 'acknowledge'}));
            lines.reverse().filter((l) => l.action === 'acknowledge' &&
                l.step === 'done').forEach((l) => looks.set(l.name, l));
            seen = true;
        } catch (problem) { // the list is worth showing without it
            if (problem.status === 401)
                throw problem;
        }
    }
    function progress(n, stop) {
        fill(body, h('p', {}, 'Looked at ' + number(n) + ' of ' + number(total()) +
            '.'), h('progress', {max: total(), value: n, 'aria-label':
            'Looked at so far'}), stop && h('p', {}, h('button', {type: 'button',
            id: 'stop', onclick: stop}, 'Stop')));
    }
    async function read() {
        mark = known();
        it = await gather(stores, (n) => {
            if (!it && n < total()) {
                progress(n);
                early();
            }
            return alive();
        });
        draw();
    }
    // Through all that waits, also what there is no room to keep.
    async function seek() {
        let on = true;
        const sought = asked();
        seeking = true;
        try {
            const found = await gather(stores, (n) => {
                progress(n, () => { on = false; });
                return on && alive();
            }, (now) => fits(p, typed(), now));
            it = {...found, sought};
        } finally {
            seeking = false;
        }
        draw();
        say('Found ' + it.all.length + '.');
    }
    async function typedMore() {
        if (seeking)
            return;
        if (it.sought && it.sought !== asked())
            await read();
        else
            draw();
    }
    page.append(title('Waiting for a decision', says), filters(p, typedMore), place,
                body);
    await seeLooks();
    await read();
    again(async () => {
        if (seeking)
            return;
        await seeLooks();
        if (it.all.length <= AGAIN_MAX && !it.sought)
            await read();
        else
            draw();
    });
}

