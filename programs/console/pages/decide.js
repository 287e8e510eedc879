// SPDX-License-Identifier: Apache-2.0
//
// decide.js - saying what became of a request: of one, or of many alike. First
// what repeats would get is shown, byte for byte; then it takes a reason and the
// record's first digits, typed.

import {Problem, h, fill, get, post, query, newKey, box, table, field, choice, trouble,
        base64, shown, reason, age, link, say} from './dom.js';

const FILE_MAX = 1 << 20;
const CHUNK = 10;   // of a batch: about a second
const BATCH_MAX = 500;

const actions = [
    ['success', 'It took effect, and I know what the service answered'],
    ['failure', 'It did not take effect, or it was refused: repeats get this ' +
        'answer'],
    ['applied', 'It took effect, but I do not know its answer: repeats get 409 ' +
        'response-unavailable'],
    ['reopen', 'Let the next repeat execute (only where the service recognises ' +
        'the key)'],
    ['acknowledge', 'Not yet: I look into it. Nothing changes but the audit log'],
];

// ---- What is said

// The fields of an answer; read() gives what the API takes.
function answerFields() {
    let file = null;
    const status = h('input', {id: 'status', type: 'number', min: '200',
                               max: '599'});
    const headers = h('textarea', {id: 'headers', rows: '3',
                                   spellcheck: 'false'});
    const body = h('textarea', {id: 'answer', rows: '5', spellcheck: 'false'});
    const upload = h('input', {id: 'file', type: 'file'});
    const raw = h('input', {id: 'raw', type: 'checkbox'});
    headers.value = 'Content-Type: application/json';
    upload.addEventListener('change', async () => {
        file = upload.files[0] || null;
        if (file && file.size > FILE_MAX) {
            say('That file is over 1 MiB: use once resolve.');
            upload.value = '';
            file = null;
        }
        body.disabled = file !== null;
    });
    const element = h('fieldset', {id: 'what-repeats-get'},
        h('legend', {}, 'What repeats get'),
        field('Status', status, 'what the service really answers, for example 201'),
        field('Headers', headers, 'one a line, Name: value'),
        field('Body', body),
        h('details', {}, h('summary', {}, 'More'),
            field('A file instead of the body', upload),
            h('p', {}, raw, ' ', h('label', {for: 'raw'}, 'It is no HTTP ' +
                'response: the bytes alone, for a program of your own'))));
    async function read() {
        const out = {};
        if (raw.checked) {
            out.raw = true;
        } else {
            out.status = Number(status.value);
            out.headers = headers.value.split('\n').filter((l) => l.trim())
                .map((l) => {
                    const [name, ...value] = l.split(':');
                    return {name: name.trim(), value: value.join(':').trim()};
                });
        }
        if (file)
            out.body_base64 = base64(await file.arrayBuffer());
        else
            out.body = body.value;
        return out;
    }
    return {element, read};
}

// The choice of an action and what belongs to it. Nothing is chosen before: what
// is chosen is final.
function sayForm(which, onchange) {
    const answer = answerFields();
    let action = null;
    const place = h('div', {});
    const element = h('div', {}, h('fieldset', {},
        h('legend', {}, 'What became of it?'),
        actions.filter(([a]) => which.includes(a)).map(([a, text]) =>
            choice('action', a, text, false, () => {
                action = a;
                fill(place, (a === 'success' || a === 'failure') &&
                    answer.element);
                onchange();
            }))), place);
    element.addEventListener('input', onchange);
    async function read() {
        if (action === null)
            throw new Problem(0, {title: 'Choose first what became of it.'});
        return {action, ...(action === 'success' || action === 'failure' ?
            await answer.read() : {})};
    }
    return {element, read};
}

// The reply that repeats will get, as it goes over the wire but for what the
// gateway adds to each.
function preview(action, reply) {
    if (action === 'acknowledge')
        return h('p', {}, 'The record stays as it is. The audit log says that ' +
                 'you look into it.');
    if (action === 'reopen')
        return h('p', {}, 'The next repeat executes.');
    if (!reply || reply.is === 'problem')
        return h('p', {}, 'Repeats get 409 response-unavailable: it has been ' +
                 'carried out, its response was not kept.');
    if (reply.is === 'bytes')
        return [h('p', {}, 'Repeats get these ' + reply.body.bytes + ' bytes, as a ' +
                  reply.kind + ':'), h('pre', {id: 'reply', tabindex: '0'},
                                       shown(reply.body))];
    return [h('p', {}, 'Repeats get exactly this, a ' + reply.kind + ', with a ' +
              'body of ' + reply.body.bytes + ' bytes; the gateway adds Date and ' +
              'what it adds to every answer:'),
        h('pre', {id: 'reply', tabindex: '0'}, 'HTTP/1.1 ' + reply.status + '\n' +
          reply.headers.map((l) => l.name + ': ' + l.value + '\n').join('') +
          'Idempotent-Replayed: true\n\n' + shown(reply.body))];
}

// ---- One record

export function decisionForm(r, busy, done, reload) {
    const path = 'stores/' + encodeURIComponent(r.store) + '/records/' + r.name +
        '/decision';
    const digits = r.name.slice(0, 8);
    const out = h('div', {id: 'checked'});
    let key = newKey();
    const which = actions.map(([a]) => a).filter(
        (a) => a !== 'reopen' || r.takeover);
    // Whatever is changed is checked again, and is another decision.
    const says = sayForm(which, () => {
        key = newKey();
        fill(out);
    });
    const shownFence = {fence: r.fence, attempt: r.attempt};

    async function failed(problem) {
        if (['fence', 'attempt', 'state', 'owned', 'gone'].includes(problem.code))
            await reload('Refused, and nothing was changed: ' + problem.message);
        else
            fill(out, trouble(problem), problem.code === 'unknown' && h('p', {},
                h('button', {type: 'button', onclick: decide}, 'Send it again')));
    }
    async function decide(event) {
        event.preventDefault();
        const why = out.querySelector('#why').value;
        const confirm = out.querySelector('#digits').value;
        const button = out.querySelector('#decide');
        button.disabled = true;
        busy(true);
        try {
            const {record, audit_lacks: lacks} = await post(path,
                {...await says.read(), ...shownFence, why, confirm}, key);
            await done((record.state === 'indeterminate' ? 'Noted.' :
                'Decided: ' + (record.kind || record.state) + '. Repeats get it ' +
                'from now on.') + (lacks ? ' But the audit log lacks its second ' +
                'line: ' + lacks : ''));
        } catch (problem) {
            button.disabled = false;
            if (problem.status === 400)
                out.querySelector('#refused').replaceChildren(trouble(problem));
            else
                await failed(problem);
        } finally {
            busy(false);
        }
    }
    async function check() {
        try {
            const what = await says.read();
            const {reply} = await post(path, {...what, ...shownFence, dry: true});
            const form = h('form', {}, preview(what.action, reply),
                field('How do you know?', h('input', {id: 'why', class: 'wide',
                    required: true, maxlength: '512', autocomplete: 'off'}),
                'what the service showed, a ticket; kept with the record and ' +
                'in the audit log'),
                field('Type the first eight digits of the record', h('input', {
                    id: 'digits', required: true, autocomplete: 'off',
                    spellcheck: 'false', maxlength: '8', pattern: digits,
                    title: digits}), digits),
                h('div', {id: 'refused'}),
                h('p', {}, h('button', {class: 'main', id: 'decide'}, 'Decide')));
            form.addEventListener('submit', decide);
            fill(out, h('h2', {}, 'Is that what you mean?'), r.label &&
                h('p', {}, 'It is about ', h('strong', {}, r.label), '.'), form);
            out.querySelector('#why').focus();
            say('Checked. Say how you know, and type the first eight digits.');
        } catch (problem) {
            await failed(problem);
        }
    }
    return h('section', {id: 'decision'}, h('h2', {}, 'Decide'),
        h('p', {}, 'Find out at the service first. What you say is final: every ' +
          'repeat gets it as its answer.'), says.element,
        h('p', {}, h('button', {type: 'button', id: 'check', onclick: check},
                     'Show what repeats would get')), out);
}

// ---- Many

async function gather(s, filter) {
    const all = [];
    let after, now;
    do {
        const some = await get('stores/' + encodeURIComponent(s) + '/records?' +
            query({...filter, after, what: 'waiting', limit: 200}));
        all.push(...some.records);
        after = some.next;
        now = some.now;
    } while (after && all.length < BATCH_MAX);
    return {all: all.slice(0, BATCH_MAX), now};
}

const said = {done: '\u2713 done', possible: '\u25cb can be decided'};

function results(caption, list) {
    return table(caption, ['Record', 'Result'], list.map((one) => [
        h('span', {class: 'digits'}, one.name.slice(0, 16)),
        h('span', {class: 'mark ' + (!one.ok ? 'wrong' :
            one.verdict === 'done' ? 'done' : '')},
          one.ok ? said[one.verdict] : '\u2716 ' + one.verdict +
            (one.text ? ': ' + one.text : ''))]));
}

export async function batch({page, title, session, parameters}) {
    const {store: s = session.stores[0], ...filter} = parameters;
    const path = 'stores/' + encodeURIComponent(s) + '/batch';
    const {all, now} = await gather(s, filter);
    const out = h('div', {});
    let key = newKey();
    const says = sayForm(['success', 'failure', 'applied', 'reopen'], () => {
        key = newKey();
        fill(out);
    });

    // In chunks, so that it can be seen how far it is, and be ended.
    async function run(items, what, progress) {
        const list = [];
        for (let i = 0; i < items.length; i += CHUNK) {
            const some = await post(path, {...what,
                items: items.slice(i, i + CHUNK)}, what.dry ? null : key);
            list.push(...some.results);
            progress(list, some.stopped);
            if (some.stopped)
                return {list, stopped: true};
        }
        return {list, stopped: false};
    }
    const items = all.map((r) => ({name: r.name, fence: r.fence,
                                   attempt: r.attempt}));

    async function decide(event, what, good) {
        event.preventDefault();
        const why = out.querySelector('#why').value;
        const place = h('div', {});
        fill(out, place);
        try {
            const {list, stopped} = await run(good, {...what, why},
                (l) => fill(place, h('p', {role: 'status'}, l.length + ' of ' +
                                     good.length + ' are decided.')));
            fill(place, stopped && box('wrong', h('p', {},
                '\u2716 It stopped at the last one of these: look at it, then ' +
                'begin again.')),
            !stopped && box('done', h('p', {id: 'decided', tabindex: '-1'},
                '\u2713 ' + list.filter((o) => o.ok).length + ' are decided.')),
            results('Decided', list));
            say('The batch has ended.');
        } catch (problem) {
            place.append(trouble(problem));
        }
    }
    async function check() {
        try {
            const what = await says.read();
            const {list} = await run(items, {...what, dry: true}, () => {});
            const good = items.filter((i) => list.find(
                (o) => o.name === i.name && o.ok));
            const form = h('form', {}, h('p', {}, good.length + ' of ' +
                items.length + ' can be decided; ' + (items.length -
                good.length) + ' would be refused.'),
            good.length > 0 && [
                field('How do you know?', h('input', {id: 'why', class: 'wide',
                    required: true, maxlength: '512', autocomplete: 'off'}),
                'for all of them'),
                field('Type how many are decided', h('input', {id: 'digits',
                    required: true, autocomplete: 'off',
                    pattern: String(good.length)}), String(good.length)),
                h('p', {}, h('button', {class: 'main', id: 'decide'},
                             'Decide ' + good.length))]);
            form.addEventListener('submit', (e) => decide(e, what, good));
            fill(out, h('h2', {}, 'Dry run'), form, results('Dry run', list));
            say('The dry run has ended: ' + good.length + ' can be decided.');
        } catch (problem) {
            fill(out, trouble(problem));
        }
    }
    fill(page, title('Batch'),
         h('p', {}, 'The same decision for all of these, each by its own fence, ' +
           'ten a second. It stops where the store does not answer.'),
         all.length ? [
             table(all.length + ' that wait', ['Unknown for', 'Record',
                 'What it is about', 'Realm', 'Why'],
             all.map((r) => [age(r.ended, now), link(r), r.label || '\u2013',
                 r.group || '\u2013', reason(r)])),
             says.element,
             h('p', {}, h('button', {type: 'button', id: 'check',
                                     onclick: check}, 'Dry run')), out] :
             box('', h('p', {id: 'none-fits'}, Object.values(filter).some(
                 (v) => v) ? 'Nothing that waits fits this filter.' :
                 'Nothing waits in the store ' + s + '.')));
}
