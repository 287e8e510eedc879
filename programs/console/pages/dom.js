// SPDX-License-Identifier: Apache-2.0
//
// dom.js - elements, the API, and how things are said. All text goes into text
// nodes: nothing that a record holds can become markup.

export function h(tag, attributes, ...children) {
    const e = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
        if (value === null || value === undefined || value === false)
            continue;
        if (name.startsWith('on'))
            e.addEventListener(name.slice(2), value);
        else
            e.setAttribute(name, value === true ? '' : value);
    }
    e.append(...children.flat(Infinity).filter(
        (c) => c !== null && c !== undefined && c !== false));
    return e;
}

// Replaces what is in an element; what had the focus has it again, by its id or
// its data-key.
export function fill(element, ...children) {
    const had = document.activeElement;
    const inside = had && had !== element && element.contains(had);
    const key = inside && (had.id || had.dataset.key);
    element.replaceChildren(...children.flat(Infinity).filter(Boolean));
    if (key) {
        const again = document.getElementById(key) ||
            [...element.querySelectorAll('[data-key]')].find(
                (e) => e.dataset.key === key);
        if (again)
            again.focus();
    }
}

// ---- The API

export class Problem extends Error {
    constructor(status, problem) {
        super(problem.title || 'The console does not answer.');
        this.status = status;
        this.code = problem.code || 'away';
        this.record = problem.record;
    }
}

async function ask(path, options) {
    let answer, value;
    try {
        answer = await fetch('/api/v1/' + path, options);
        value = await answer.json();
    } catch {
        throw new Problem(0, {});
    }
    if (!answer.ok)
        throw new Problem(answer.status, value);
    return value;
}

export function get(path, signal) {
    return ask(path, {headers: {'Accept': 'application/json'}, signal});
}

export function post(path, body, key) {
    const headers = {'Content-Type': 'application/json', 'Once-Console': '1'};
    if (key)
        headers['Idempotency-Key'] = key;
    return ask(path, {method: 'POST', headers, body: JSON.stringify(body)});
}

export function query(parameters) {
    const q = new URLSearchParams();
    for (const [name, value] of Object.entries(parameters))
        if (value !== '' && value !== null && value !== undefined)
            q.set(name, value);
    return q.toString();
}

// A decision's own key.
export function newKey() {
    return [...crypto.getRandomValues(new Uint8Array(16))].map(
        (b) => b.toString(16).padStart(2, '0')).join('');
}

// ---- Words

// For those who listen: what has just happened.
export function say(text) {
    document.getElementById('said').textContent = text;
}

export function box(kind, ...children) {
    return h('div', {class: 'box ' + kind,
                     role: kind === 'wrong' ? 'alert' : null}, ...children);
}

export function trouble(problem) {
    const text = problem instanceof Problem ? problem.message :
        'This page is broken: ' + problem;
    return box('wrong', h('p', {}, '\u2716 ' + text));
}

// A state is a sign and a word; the colour only helps.
const states = {
    indeterminate: ['?', 'unknown', 'waits'],
    dispatched: ['\u2192', 'sent, in flight', ''],
    claimed: ['\u2026', 'claimed', ''],
    completed: ['\u2713', 'completed', 'done'],
    absent: ['\u25cb', 'free', ''],
    corrupt: ['\u2716', 'corrupt', 'wrong'],
};

export function state(r) {
    const [sign, word, kind] = states[r.state];
    const more = r.state === 'completed' && r.kind ? ', ' + r.kind : '';
    return h('span', {class: 'mark ' + kind}, sign + ' ' + word + more);
}

// The last two free a key: nothing waits for an operator because of them.
export const freeing = ['not-sent', 'operator'];

export const reasons = {
    'reset': 'the connection was lost',
    'timeout': 'no answer in time',
    'bad-response': 'the answer was no HTTP',
    'truncated': 'the answer was cut short',
    'upstream-said': 'the service said so itself',
    'owner-gone': 'the gateway\u2019s process died',
    'store-silent': 'the store did not answer',
    'gap': 'lost between a backup and its restore',
    'program': 'the program said so',
    'status': 'a status that says so',
    'not-sent': 'it was not sent',
    'operator': 'an operator',
};

export function reason(r) {
    return r.reason ? r.reason + ': ' + reasons[r.reason] : '\u2013';
}

export function span(ms) {
    const s = Math.max(0, Math.round(ms / 1000));
    if (s < 120)
        return s + ' s';
    if (s < 7200)
        return Math.floor(s / 60) + ' min';
    if (s < 172800)
        return Math.floor(s / 3600) + ' h';
    return Math.floor(s / 86400) + ' days';
}

// A time, and how long ago it was by the console's clock.
export function time(text, now) {
    if (!text)
        return '\u2013';
    const ms = Date.parse(now) - Date.parse(text);
    const away = !now ? '' : ms >= 0 ? ', ' + span(ms) + ' ago' :
        ', in ' + span(-ms);
    return h('time', {datetime: text},
             text.replace('T', ' ').replace(/\.\d+Z/, ' UTC') + away);
}

export function age(text, now) {
    return text ? h('time', {datetime: text, title: text},
                    span(Date.parse(now) - Date.parse(text))) : '\u2013';
}

export function table(caption, heads, rows) {
    return h('div', {class: 'scroll', tabindex: '0', role: 'region',
                     'aria-label': caption},
        h('table', {}, h('caption', {}, caption),
          h('thead', {}, h('tr', {}, heads.map(
              (t) => h('th', {scope: 'col'}, t)))),
          h('tbody', {}, rows.map((cells) => h('tr', {}, cells.map(
              (c) => h('td', {}, c)))))));
}

export function facts(caption, pairs) {
    return h('table', {class: 'facts'}, h('caption', {}, caption),
             h('tbody', {}, pairs.filter(Boolean).map(([name, value]) =>
                 h('tr', {}, h('th', {scope: 'row'}, name),
                   h('td', {}, value)))));
}

export function link(r, text) {
    return h('a', {href: '#/record/' + r.store + '/' + r.name, class: 'digits',
                   'data-key': r.name}, text || r.name.slice(0, 16));
}

export function field(label, input, hint) {
    const id = input.id;
    if (hint)
        input.setAttribute('aria-describedby', id + '-hint');
    return h('p', {}, h('label', {class: 'block', for: id}, label), input,
             hint && h('span', {class: 'hint', id: id + '-hint'}, ' ', hint));
}

export function choice(name, value, text, checked, onchange) {
    const id = name + '-' + value;
    return h('p', {}, h('input', {type: 'radio', name, value, id, checked,
                                  onchange}), ' ',
             h('label', {for: id}, text));
}

// Bytes as base64, of a file.
export function base64(buffer) {
    let text = '';
    for (const b of new Uint8Array(buffer))
        text += String.fromCharCode(b);
    return btoa(text);
}

// Bytes of the API as text, or as the digits of each byte.
export function shown(b) {
    const more = b.shown < b.bytes ?
        '\n[the first ' + b.shown + ' of ' + b.bytes + ' bytes]' : '';
    if (b.text !== undefined)
        return b.text + more;
    const lines = [];
    const raw = atob(b.base64);
    for (let at = 0; at < raw.length; at += 16)
        lines.push(at.toString(16).padStart(6, '0') + '  ' +
                   [...raw.slice(at, at + 16)].map((c) => c.charCodeAt(0)
                       .toString(16).padStart(2, '0')).join(' '));
    return lines.join('\n') + more;
}
