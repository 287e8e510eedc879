// SPDX-License-Identifier: Apache-2.0
//
// plot.js - the last hour in numbers and lines: what the console has counted each
// minute, and how it is drawn. A plot says in words what its line shows.

import {h, number} from './dom.js';

const MINUTES = 60, COLOURS = 6;

// ---- Numbers

const parsed = new Map();

// 'name{a="b"}' as [name, {a: 'b'}].
export function parse(key) {
    if (!parsed.has(key)) {
        const labels = {};
        for (const [, name, value] of key.matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g))
            labels[name] = value.replace(/\\(.)/g, (all, c) => c === 'n' ? '\n' : c);
        parsed.set(key, [key.split('{')[0], labels]);
    }
    return parsed.get(key);
}

export const total = (values) => values.reduce((sum, v) => sum + (v || 0), 0);

// The increments of a counter, added up by what `by` says of its labels; only of
// those that `where` wants.
export function sums(m, name, by, where) {
    const all = new Map();
    for (const [key, values] of Object.entries(m.series)) {
        const [is, labels] = parse(key);
        if (is !== name || (where && !where(labels)))
            continue;
        const into = all.get(by(labels)) || Array(MINUTES).fill(0);
        values.forEach((v, i) => { into[i] += v; });
        all.set(by(labels), into);
    }
    return all;
}

export const sum = (m, name, where) => sums(m, name, () => '', where).get('') ||
    Array(MINUTES).fill(0);

// So many of the last minutes the console has seen whole; the newest is not over.
function known(m, counted) {
    const minute = (text) => Math.floor(Date.parse(text) / 60000);
    const first = MINUTES - 1 - (minute(m.now) - minute(m.since));
    // A console that was just started shows ten minutes.
    return {first: Math.max(0, first), from: Math.max(0, Math.min(first, 50)),
            last: counted && first < MINUTES - 2 ? MINUTES - 2 : MINUTES - 1};
}

// Time below which this part of all fell, of a histogram's buckets, each minute.
export function quantile(m, name, part) {
    const by = [...sums(m, name + '_bucket', (l) => l.le)].map(
        ([le, values]) => [le === '+Inf' ? Infinity : Number(le), values]).sort(
        (a, b) => a[0] - b[0]);
    return Array.from({length: MINUTES}, (none, i) => {
        const all = by.length ? by[by.length - 1][1][i] : 0;
        if (!all)
            return null;
        const at = by.findIndex(([, v]) => v[i] >= part * all);
        const [high, n] = by[at], [low, before] = at > 0 ? by[at - 1] : [0, null];
        const under = before ? before[i] : 0;
        return high === Infinity ? low : low + (high - low) *
            (part * all - under) / Math.max(1, n[i] - under);
    });
}

// ---- Lines

// Runs of minutes that are known, as points.
function runs(values, most, {first, last}, height) {
    const list = [];
    let run = null;
    values.forEach((v, i) => {
        if (v === null || i < first || i > last) {
            run = null;
            return;
        }
        if (!run)
            list.push(run = []);
        run.push([i, height - (height - 2) * v / (most || 1)]);
    });
    // One minute alone is a line, too.
    return list.map((r) => r.length > 1 ? r : [[r[0][0] - 1, r[0][1]], r[0]]);
}

const points = (list) => list.map(([x, y]) => x.toFixed(1) + ',' + y.toFixed(1))
    .join(' ');

function drawing(lines, m, counted, height, says) {
    const at = known(m, counted);
    const most = Math.max(...lines.flatMap(({values}) => values.filter(
        (v, i) => v !== null && i >= at.first && i <= at.last)), 0);
    return h('svg', {viewBox: at.from + ' 0 ' + (MINUTES - 1 - at.from) + ' ' + height,
                     preserveAspectRatio: 'none', role: 'img', 'aria-label': says},
    h('line', {x1: at.from, x2: MINUTES - 1, y1: height, y2: height}),
    lines.map(({values, colour, area}) => runs(values, most, at, height).map(
        (run) => [area && h('polygon', {class: colour, points: points([
            [run[0][0], height], ...run, [run[run.length - 1][0], height]])}),
        h('polyline', {class: colour, points: points(run)})])));
}

// A small one, without axes; beside it stands the number.
export function spark(m, name, values, colour, counted) {
    return h('div', {class: 'plot'}, drawing([{values, colour, area: true}], m,
        counted, 40, name + ' each minute of the last hour, up to ' +
        number(Math.max(...values.map((v) => v || 0)))));
}

// The largest ones, and the rest as one.
function largest(all) {
    const list = [...all].map(([name, values]) => ({name, values}))
        .filter(({values}) => values.some((v) => v)).sort(
        (a, b) => total(b.values) - total(a.values));
    if (list.length <= COLOURS)
        return list;
    return [...list.slice(0, COLOURS - 1), {name: 'others', values: list.slice(
        COLOURS - 1).reduce((a, {values}) => a.map((v, i) => v + (values[i] || 0)),
                            Array(MINUTES).fill(0))}];
}

// What words of the glossary mean, for who does not know them.
const meanings = new Map(Object.entries({
    attempt: 'one try at the operation of a key',
    attempts: 'each is one try at the operation of a key',
    claim: 'to become the owner of a key, before anything is sent',
    complete: 'to record the outcome, which repeats get from then on',
    indeterminate: 'the outcome is unknown, and waits for a decision',
    leases: 'how long owners count as alive without a sign of life',
    mismatch: 'the same key came with another request, which was refused',
    released: 'the key was freed, since the attempt had no effect',
    replayed: 'a repeat got the recorded outcome; nothing was executed',
}));

const explained = (text) => text.split(/([a-z]+)/i).map((word) => {
    const title = meanings.get(word.toLowerCase());
    return title ? h('abbr', {title}, word) : word;
});

// Why nothing is known of what is empty; false: it is known that it is nothing.
function unknown(m, all, own) {
    if (own)
        return [...all.values()].every((v) => v.every((n) => n === null)) &&
            'Not known: no store has answered yet.';
    return !m.sources.length ? 'Not measured: no gateway is watched.' :
        !m.sources.some((s) => s.up) && !Object.keys(m.series).length &&
            'Not measured: nothing that is watched has answered.';
}

// A whole plot: lines by name, with an axis and what each line is. `what` writes
// a value, and counted says that values are of a minute that has to be over.
// `own`: the console has seen it in the stores itself, without a gateway.
export function plot(m, name, all, {what = number, counted = false, own = false,
                                    hint = ''} = {}) {
    const lines = largest(all).map((l, i) => ({...l, colour: 'c' + (i + 1)}));
    const most = Math.max(0, ...lines.flatMap(({values}) => values));
    const card = (...inside) => h('section', {class: 'panel card',
        'data-key': 'plot-' + name}, h('h3', {}, explained(name), hint && h('span', {
        class: 'hint'}, hint)), ...inside);
    if (!lines.length)
        return card(h('p', {class: 'soft'}, unknown(m, all, own) ||
            'None in the last hour.'));
    return card(h('div', {class: 'plot large'},
        h('div', {class: 'axis'}, h('span', {}, 'up to ' + what(most))),
        drawing(lines, m, counted, 150, name + ': ' + lines.map((l) => l.name)
            .join(', ') + '; up to ' + what(most) + ' in the last hour'),
        h('div', {class: 'axis'}, h('span', {}, MINUTES - 1 - known(m).from +
            1 + ' min ago'), h('span', {}, 'now'))),
    h('ul', {class: 'key'}, lines.map(({name: n, colour, values}) => h('li', {
        class: colour}, h('span', {}, explained(n), counted ? ' ' + number(total(values)) :
        '')))));
}
