// SPDX-License-Identifier: Apache-2.0
//
// find.js - a record, by what one has of it. What is typed stands in no address
// and in no log.

import {h, fill, get, post, ofStore, query, box, state, time, about, table, link,
        field, choice, trouble, many, number, plain, say} from './dom.js';

const ways = {
    any: ['An order, a record or a trace id', 'A part of what it is about, the ' +
        'first digits of a record, or the 32 of a trace', [
        ['q', 'What you have']]],
    request: ['The request that the gateway got', 'Its key, and what stands in ' +
        'the record\u2019s name besides', [
        ['scope', 'Scope: who asked, as once_scope has it'],
        ['realm', 'Realm: the first server_name, unless once_realm says otherwise'],
        ['method', 'Method, only under once_key_space path'],
        ['path', 'Path, as it was sent, only there, too'],
        ['key', 'Idempotency-Key']]],
    key: ['A group and a key, of a program', 'As once run and the libraries take ' +
        'them', [
        ['group', 'Group (default)'], ['key', 'Key']]],
};

const FOUND_MAX = 50;
let asked = ''; // from the field at the top

// Finds this on the page for it; true: that page is shown already.
export function look(text) {
    asked = text;
    const there = location.hash === '#/find';
    location.hash = '#/find';
    return there;
}

// Which questions a text can be.
function questions(text) {
    const digits = /^[0-9a-f]+$/i.test(text);
    return [digits && text.length === 32 && {by: 'trace', trace: text},
        digits && text.length >= 8 && text.length <= 64 && {by: 'hash', hash: text},
        {by: 'label', label: text}].filter(Boolean);
}

function found(list, now) {
    return table('Found', ['What it is about', 'State', 'Since', 'Record'],
        list.map((r) => ({key: 'row-' + r.name, cells: [
            [{class: 'text'}, link(r, about(r)),
             h('span', {class: 'hint'}, 'store ' + r.store)],
            [{class: 'tight'}, state(r)],
            [{class: 'figures'}, time(r.granted, now)],
            [{class: 'tight'}, h('code', {}, r.name.slice(0, 16))]]})));
}

// Nothing found where a store is silent says nothing of that store.
const unheard = (silent) => silent.length > 0 && box('wrong', h('p', {},
    '\u2716 It may be in ' + silent.join(', ') + ', which does not answer.'));

const none = () => box('', h('p', {id: 'none'}, 'There is no such record. It may ' +
    'have been forgotten, or it was never here.'));

const notAll = () => box('', h('p', {id: 'none'}, 'Not among what waits or is in ' +
    'flight. Completed records were not searched.'));

// ---- By a text: at once what waits and what is in flight, then the rest

async function atOnce(text) {
    let matches = [], complete = true, silent = [], now;
    for (const question of questions(text)) {
        const some = await post('find', question);
        const known = new Set(matches.map((r) => r.name));
        matches = matches.concat(some.matches.filter((r) => !known.has(r.name)));
        complete = complete && some.complete;
        ({now} = some);
        silent = [...new Set([...silent, ...some.silent])];
    }
    return {matches, complete, silent, now};
}

// Every record there is, page by page; it can be ended.
async function everywhere({text, stores, counts, matches, alive}, show) {
    const t = text.toLowerCase(), known = new Set(matches.map((r) => r.name));
    let n = 0;
    for (const s of stores) {
        let after = null;
        do {
            const some = await get(ofStore(s) + '/records?' + query(
                {what: 'all', limit: 200, after}));
            n += some.records.length;
            for (const r of some.records)
                if (!known.has(r.name) && matches.length < FOUND_MAX &&
                    ([r.label || '', plain(r.label || '')].some((label) =>
                        label.toLowerCase().includes(t)) || r.trace === t))
                    matches.push(r);
            after = some.next;
            show(n, counts, false, some.now);
            if (!alive())
                return;
        } while (after && matches.length < FOUND_MAX);
    }
    show(n, counts, true, null);
}

function searching(place, rest, text, context, first) {
    let on = true;
    const counts = context.now().stores.reduce((n, s) => n + (s.counts ?
        s.counts.claimed + s.counts.dispatched + s.counts.indeterminate +
        s.counts.rest : 0), 0);
    const whole = {text, stores: context.session.stores.filter(
        (s) => !first.silent.includes(s)), counts, matches: first.matches,
                   alive: () => on && context.alive()};
    let {now} = first;
    const show = (n, of, ended, at) => {
        now = at || now;
        fill(rest, h('p', {}, 'Looked at ' + number(n) + ' of about ' +
            number(Math.max(n, of)) + ' records: ' +
            many(first.matches.length, 'match', 'matches') + '.'),
        !ended && [h('progress', {max: Math.max(n, of, 1), value: n,
                                  'aria-label': 'Looked at so far'}),
            h('p', {}, h('button', {type: 'button', id: 'stop', onclick: () => {
                on = false;
            }}, 'Stop'))]);
        fill(place, first.matches.length ? found(first.matches, now) :
            ended ? none() : null);
        if (ended)
            say(first.matches.length + ' found.');
    };
    return everywhere(whole, show).catch((problem) => fill(rest, trouble(problem)));
}

async function byText(text, out, context) {
    const place = h('div', {class: 'panel'}), rest = h('div', {});
    const first = await atOnce(text), any = first.matches.length > 0;
    const whole = /^[0-9a-f]{64}$/i.test(text); // a name: every record was asked
    fill(place, any ? found(first.matches, first.now) : whole ? none() : notAll());
    fill(rest, !first.complete && h('p', {}, 'There may be more: be more exact.'),
         h('p', {}, any && 'Of labels, what waits and what is in flight was ' +
           'searched. ', h('button', {type: 'button', id: 'everything', class:
           any ? '' : 'main', onclick: () => searching(place, rest, text, context,
               first)}, 'Search every record')));
    fill(out, unheard(first.silent), place, rest);
    say(first.matches.length + ' found.');
}

async function byParts(question, out) {
    const {now, matches, complete, silent} = await post('find', question);
    fill(out, unheard(silent), h('div', {class: 'panel'}, matches.length ? found(matches, now) :
        none()), !complete && h('p', {}, 'There may be more: be more exact.'));
    say(matches.length + ' found.');
}

// ---- The page

export async function find(context) {
    const {page, title, parameters} = context;
    const out = h('div', {class: 'page'}), fields = h('div', {class: 'parts'});
    const text = asked || parameters.hash || '';
    asked = '';
    const draw = (by) => fill(fields, ways[by][2].map(([id, label]) => field(label,
        h('input', {id, name: id, class: 'wide', autocomplete: 'off',
                    value: id === 'q' ? text : '', spellcheck: 'false'}))),
    h('p', {}, h('button', {class: 'main', id: 'search'}, 'Find')));
    const form = h('form', {id: 'find', class: 'panel pad'}, h('fieldset', {},
        h('legend', {}, 'What do you have?'),
        Object.entries(ways).map(([way, [name, means]]) => choice('by', way, name,
            means, way === 'any', () => draw(way)))), fields);
    async function search() {
        const {by, ...parts} = Object.fromEntries(new FormData(form));
        try {
            if (by === 'any')
                await byText(parts.q.trim(), out, context);
            else
                await byParts({by, ...parts}, out);
        } catch (problem) {
            fill(out, trouble(problem));
        }
    }
    form.addEventListener('submit', (e) => {
        e.preventDefault();
        search();
    });
    draw('any');
    page.append(title('Find', 'What you type stands in no address and no log.'), form,
                out);
    if (text)
        await search();
}
