// SPDX-License-Identifier: Apache-2.0
//
// doubts.js - what looks wrong with an answer, before it is final. Each doubt
// takes a tick, or another answer.

import {h, box, named, about, many} from './dom.js';

// What clients repeat by themselves.
const repeated = (status) => status >= 500 || status === 429;

const textOf = ({text, base64}) => text !== undefined ? text : atob(base64);

// A word as a whole: o-1 does not stand in o-12.
const has = (text, word) => new RegExp('(?<![\\p{L}\\p{N}])' +
    word.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&') + '(?![\\p{L}\\p{N}])',
'iu').test(text);

// As JSON is read: characters may be escaped there.
function readAsJson(text) {
    try {
        return JSON.stringify(JSON.parse(text));
    } catch {
        return null;
    }
}

const typeOf = (reply) => (reply.headers || []).find(
    (l) => l.name.toLowerCase() === 'content-type');

// What could name an order: the body, and headers other than its type.
function words(reply) {
    const text = textOf(reply.body);
    return [text, readAsJson(text), ...(reply.headers || []).filter(
        (l) => l !== typeOf(reply)).map((l) => l.value)].filter(Boolean).join('\n');
}

const isAnswer = (reply) => reply && (reply.is === 'response' ||
    reply.is === 'bytes');

// Of the answer itself, whatever it is about.
function ofAnswer(action, {status, ...reply}) {
    const type = typeOf(reply), empty = [204, 304].includes(status);
    return [
        action === 'success' && status >= 400 && status +
            ' is no success to most clients.',
        action === 'failure' && status >= 200 && status < 300 && status +
            ' is a success to most clients.',
        action === 'failure' && repeated(status) && 'Clients repeat after ' +
            status + ', with the same key, which is never executed.',
        type && /^application\/([\w.+-]+\+)?json\b/i.test(type.value) && !empty &&
            reply.body.shown === reply.body.bytes &&
            readAsJson(textOf(reply.body)) === null && 'The body is ' +
            (reply.body.bytes === 0 ? 'empty.' : 'not JSON.'),
    ].filter(Boolean);
}

// Of an answer for one record.
export function doubts(r, action, reply) {
    if (!isAnswer(reply))
        return [];
    const text = words(reply);
    const missing = text ? named(r.label).filter((one) => !has(text, one)) : [];
    return [...ofAnswer(action, reply), missing.length > 0 &&
        'The body does not name ' + missing.join(', ') + '.'].filter(Boolean);
}

// Of one answer for many records.
export function doubtsOfMany(list, action, reply) {
    if (!isAnswer(reply))
        return [];
    const text = words(reply), all = list.flatMap((r) => named(r.label));
    const inside = [...new Set(all)].filter((one) => has(text, one));
    return [...ofAnswer(action, reply), list.length > 1 && inside.length > 0 &&
        inside.length < new Set(all).size && 'The body names ' +
        inside.slice(0, 5).join(', ') + ', and all of them get it.'].filter(Boolean);
}

const tick = (id, text) => h('label', {class: 'check', for: id}, h('input', {
    type: 'checkbox', id, required: true}), text);

// A tick for each doubt; without them the form is not sent.
export const agree = (texts) => texts.length > 0 && box('waits', h('p', {},
    'Change the answer, or tick what is right all the same:'),
texts.map((text, i) => tick('doubt-' + i, text)));

// Of many, some may have been carried out and others not.
export const lookedUp = (list) => list.length > 1 &&
    tick('looked-up', 'I looked each of them up at the service');

// One answer for many requests is seldom right.
export function oneForAll(list, action) {
    if (list.length < 2 || (action !== 'success' && action !== 'failure'))
        return null;
    const labels = new Set(list.map((r) => r.label)).size;
    return box('waits', h('p', {}, '! All of them get this one answer, word for ' +
        'word, and they are about ' + (labels === list.length ? many(labels,
        'different order') : many(list.length, 'request') + ', each of its own, ' +
        'also where the label is the same') + ', such as ', about(list[0]),
    '. A body that names one of them is wrong for the others.'),
    tick('for-all', 'It is right for each of them'));
}
