// SPDX-License-Identifier: Apache-2.0
//
// dom.js - elements, the API, and how things are said. All text goes into text
// nodes: nothing that a record holds can become markup.

const SVG = 'http://www.w3.org/2000/svg';
const drawn = ['svg', 'polyline', 'polygon', 'line', 'title', 'text'];

function element(tag, attributes, children) {
    const e = drawn.includes(tag) ? document.createElementNS(SVG, tag) :
        document.createElement(tag);
    e.does = {};
    for (const [name, value] of Object.entries(attributes || {})) {
        if (value === null || value === undefined || value === false)
            continue;
        if (name.startsWith('on')) {
            e.does[name.slice(2)] = value;
            e.addEventListener(name.slice(2), (event) => e.does[event.type](event));
        } else {
            e.setAttribute(name, value === true ? '' : value);
        }
    }
    e.append(...flat(children));
    return e;
}

const flat = (children) => children.flat(Infinity).filter(
    (c) => c !== null && c !== undefined && c !== false && c !== '');

export function h(tag, attributes, ...children) {
    return element(tag, attributes, children);
}

// Replaces what is in an element; what had the focus has it again, by its id or
// its data-key.
export function fill(place, ...children) {
    const had = document.activeElement;
    const inside = had && had !== place && place.contains(had);
    const key = inside && keyOf(had);
    place.replaceChildren(...flat(children));
    if (key) {
        const again = [...place.querySelectorAll('[id],[data-key]')].find(
            (e) => keyOf(e) === key);
        if (again)
            again.focus();
    }
}

// ---- Looking again
//
// What is shown becomes what is true now, and what has not changed stays as it
// is: with its focus, its selection and its place on the screen. For what reads
// nothing from its own elements: those that stand there stay, and do what the
// new ones do.

const keyOf = (n) => (n.nodeType === 1 && (n.id || n.dataset.key)) || '';
const kindOf = (n) => n.nodeName + '#' + keyOf(n) + '#' +
    Object.keys(n.does || {}).join();

function become(is, wanted) {
    if (is.nodeType !== 1) {
        if (is.data !== wanted.data)
            is.data = wanted.data;
        return;
    }
    for (const {name} of [...is.attributes])
        if (!wanted.hasAttribute(name))
            is.removeAttribute(name);
    for (const {name, value} of wanted.attributes)
        if (is.getAttribute(name) !== value)
            is.setAttribute(name, value);
    is.does = wanted.does;
    if (is.type === 'checkbox')
        is.checked = wanted.checked;
    children(is, [...wanted.childNodes]);
}

function children(place, wanted) {
    let at = place.firstChild;
    for (const next of wanted) {
        const kind = kindOf(next);
        let is = at;
        while (is && kindOf(is) !== kind)
            is = is.nextSibling;
        if (!is) {
            place.insertBefore(next, at);
            continue;
        }
        while (at !== is) { // what stands before it is gone
            const gone = at;
            at = at.nextSibling;
            gone.remove();
        }
        become(is, next);
        at = is.nextSibling;
    }
    while (at) {
        const gone = at;
        at = at.nextSibling;
        gone.remove();
    }
}

export function update(place, ...nodes) {
    children(place, flat(nodes).map((n) => typeof n === 'object' ? n :
        document.createTextNode(n)));
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

// On loopback: the secret of the session. What is kept for an origin is kept from
// other ports of the host, unlike a cookie, and is there for all of its tabs.
export const secret = {
    keep: (value) => localStorage.setItem('session', value),
    drop: () => localStorage.removeItem('session'),
};

async function ask(path, options) {
    const own = localStorage.getItem('session');
    let answer, value;
    if (own)
        options.headers['Once-Session'] = own;
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

export const ofStore = (s) => 'stores/' + encodeURIComponent(s);

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

// 12345 as "12,345" or as the reader writes it.
export const number = (n) => n === null || n === undefined ? '\u2013' :
    n.toLocaleString();

export const many = (n, one, more) => number(n) + ' ' +
    (n === 1 ? one : more || one + 's');

export function bytes(n) {
    const units = ['bytes', 'KB', 'MB', 'GB', 'TB'];
    let at = 0;
    for (; n >= 1000 && at < units.length - 1; at++)
        n /= 1000;
    return (n < 10 && at > 0 ? n.toFixed(1) : Math.round(n)) + ' ' + units[at];
}

// What happened meanwhile: it is seen wherever the page is scrolled to.
export function news(place, text) {
    fill(place, box('waits', h('p', {}, '! ' + text), h('button', {type: 'button',
        class: 'small', id: 'news-seen', onclick: () => fill(place)}, 'Close')));
    say(text);
}

// What was decided, and what comes next.
export function decided(text, href, next) {
    return box('done', h('p', {id: 'decided', tabindex: '-1'}, '\u2713 ' + text, ' ',
                         h('a', {href}, next)));
}

// A state is a sign and a word; the colour only helps.
const states = {
    indeterminate: ['?', 'outcome unknown', 'waits'],
    dispatched: ['\u2192', 'sent, in flight', 'runs'],
    claimed: ['\u2026', 'claimed', 'runs'],
    completed: ['\u2713', 'completed', 'done'],
    absent: ['\u25cb', 'free', ''],
    corrupt: ['\u2716', 'corrupt', 'wrong'],
};

export function mark(kind, ...text) {
    return h('span', {class: 'mark ' + kind}, ...text);
}

export function state(r, more) {
    const [sign, word, kind] = states[r.state];
    if (r.state === 'completed' && r.kind === 'failure')
        return mark('', 'answered: failure' + (more || ''));
    return mark(kind, sign + ' ' + word +
        (r.state === 'completed' && r.kind ? ', ' + r.kind : '') + (more || ''));
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
    return r.reason ? reasons[r.reason] : '\u2013';
}

// A label is printable ASCII; what stands in it of other scripts is escaped as
// in addresses. It is shown as its writer knows it, unless it is something else,
// or has characters that are not seen or that turn others around.
const unseen = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/u;

export function plain(label) {
    try {
        const text = decodeURIComponent(label);
        return unseen.test(text) ? label : text;
    } catch {
        return label;
    }
}

// A text whose parts are not broken at their hyphens, where they are short.
export const unbroken = (text) => text.split(/([ /=?&;]+)/).map((part) =>
    part.includes('-') && part.length <= 20 ? h('span', {class: 'whole'}, part) :
        part);

// What a record is about: its request, and what else its label says.
export function about(r) {
    if (!r.label)
        return h('span', {class: 'soft'}, 'no label');
    const [, request, rest] = /^([A-Z]+ \/\S*)?(.*)$/s.exec(plain(r.label));
    return h('bdi', {}, request && h('b', {}, unbroken(request)), unbroken(rest));
}

// What a label says its record is about: the values behind "=", or else the last
// part of it that has a digit; the version of an interface is none.
export function named(label) {
    const text = label || '';
    const values = [...text.matchAll(/=([^ &;]+)/g)].map(([, value]) => value);
    const parts = text.split(/[ /?]+/).filter(
        (part) => /\d/.test(part) && !/^v\d+$/i.test(part));
    return (values.length ? values : parts.slice(-1)).map(plain);
}

// ---- Times

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

const utc = (text) => text.replace('T', ' ').replace(/\.\d+Z/, ' UTC');

// In the reader's own time, with UTC beside it.
export function time(text, now) {
    if (!text)
        return '\u2013';
    const at = new Date(text), ms = Date.parse(now) - at;
    const away = !now ? '' : ms >= 0 ? ' \u00b7 ' + span(ms) + ' ago' :
        ' \u00b7 in ' + span(-ms);
    if (at.getTimezoneOffset() === 0)
        return h('time', {datetime: text}, utc(text) + away);
    return h('time', {datetime: text}, at.toLocaleString(undefined, {
        dateStyle: 'medium', timeStyle: 'medium'}) + away, ' ',
    h('span', {class: 'hint'}, utc(text)));
}

export function age(text, now, ago) {
    return text ? h('time', {datetime: text, title: utc(text)},
                    span(Date.parse(now) - Date.parse(text)) + (ago || '')) :
        '\u2013';
}

// ---- Parts

// Cells are an element, a text, or [attributes, ...children]. On a narrow screen
// a row is a card, and the head of a column stands before its cell.
export function table(caption, heads, rows, more) {
    const cell = (c, i) => {
        const [attributes, ...inside] = Array.isArray(c) ? c : [{}, c];
        return h('td', {'data-head': heads[i] || null, ...attributes}, ...inside);
    };
    return h('div', {class: 'scroll', tabindex: '0', role: 'region',
                     'aria-label': caption, ...more},
        h('table', {}, h('caption', {}, caption),
          h('thead', {}, h('tr', {}, heads.map((t) => t ?
              h('th', {scope: 'col'}, t) : h('td', {})))),
          h('tbody', {}, rows.map(({key, cells}) => h('tr', {'data-key': key},
              cells.map(cell))))));
}

// Rows without keys of their own.
export const rowsOf = (list) => list.map((cells) => ({cells}));

export function facts(pairs) {
    return h('dl', {}, pairs.filter(Boolean).map(([name, ...value]) =>
        [h('dt', {}, name), h('dd', {}, ...value)]));
}

// A part of a page, with its name and what belongs beside it.
export function panel(name, beside, ...inside) {
    return h('section', {class: 'panel'}, h('div', {class: 'title'},
        h('h2', {}, name), beside), ...inside);
}

export const pad = (...inside) => h('div', {class: 'pad'}, ...inside);

// A text that is copied as a whole.
export function copied(text, what) {
    return h('span', {class: 'copied'}, h('code', {}, text), h('button', {
        type: 'button', class: 'small', 'aria-label': 'Copy ' + what,
        async onclick(event) {
            const button = event.currentTarget;
            try {
                await navigator.clipboard.writeText(text);
                say('Copied.');
                button.textContent = 'Copied';
            } catch {
                say('This browser does not let pages copy: select it.');
            }
        }}, 'Copy'));
}

export const record = (r) => '#/record/' + r.store + '/' + r.name;

export function link(r, text) {
    return h('a', {href: record(r), 'data-key': r.name},
             text || h('code', {}, r.name.slice(0, 16)));
}

export function field(label, input, hint) {
    const id = input.id;
    if (hint)
        input.setAttribute('aria-describedby', id + '-hint');
    return h('div', {class: 'field'}, h('label', {for: id}, label), input,
             hint && h('span', {class: 'hint', id: id + '-hint'}, hint));
}

// Says at a field what is wrong with it, until it is changed.
export function refuse(input, text) {
    const id = input.id + '-error';
    const said = h('span', {class: 'error', id, role: 'alert'}, '\u2716 ' + text);
    document.getElementById(id)?.remove();
    input.after(said);
    input.setAttribute('aria-invalid', 'true');
    input.addEventListener('input', () => {
        said.remove();
        input.removeAttribute('aria-invalid');
    }, {once: true});
    input.focus();
}

export function pick(id, label, options, value, onchange) {
    return field(label, h('select', {id, name: id, onchange}, options.map(
        ([v, text]) => h('option', {value: v, selected: v === value}, text))));
}

// One of several: what it is, and what it means.
export function choice(name, value, text, means, checked, onchange) {
    const id = name + '-' + value;
    return h('label', {class: 'choice', for: id}, h('input', {
        type: 'radio', name, value, id, checked, onchange}),
    h('span', {}, h('b', {}, text), means && h('span', {class: 'hint'}, means)));
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
