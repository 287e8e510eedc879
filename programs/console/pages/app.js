// SPDX-License-Identifier: Apache-2.0
//
// app.js - which page, for whom, in which colours; looking again, and what is
// said when that is not possible; keys.

import {Problem, h, fill, update, get, post, box, unbroken, say, secret, trouble} from
    './dom.js';
import {overview, store} from './overview.js';
import {waiting, ticked} from './waiting.js';
import {outbox, parked, sagas, message, needs} from './messages.js';
import {metrics} from './metrics.js';
import {live, audit} from './lists.js';
import {record} from './record.js';
import {find, look} from './find.js';
import {batch} from './decide.js';

const REFRESH_MS = 5000;
const START = 'once console --store STORE --listen 127.0.0.1:0 --decide';

// [path, name, page, what stands beside the name]
const pages = [
    ['', 'Overview', overview],
    ['waiting', 'Waiting', waiting, (now) => sum(now.stores, 'indeterminate'),
        true],
    ['live', 'In flight', live, (now) => sum(now.stores, 'claimed') +
        sum(now.stores, 'dispatched')],
    ['find', 'Find', find],
    ['', 'Messages'],
    ['outbox', 'Outbox', outbox, (now) => needs(now.databases).outbox, true],
    ['parked', 'Parked', parked, (now) => needs(now.databases).parked, true],
    ['sagas', 'Sagas', sagas, (now) => needs(now.databases).saga, true],
    ['', 'System'],
    ['metrics', 'Metrics', metrics],
    ['audit', 'Audit log', audit],
];
const more = {record, batch, store, message};
const ofMessages = ['Messages', 'Outbox', 'Parked', 'Sagas'];

const by = (id) => document.getElementById(id);
const main = by('main');
let session = null;
let seen = 0;        // when the console answered last
let shown = 0;       // which page is shown: an answer for another is dropped
let last = '';       // its name
let refresh = null;  // looks again, or null
let now = {stores: [], databases: []};
let timer = null;

const sum = (stores, what) => stores.reduce(
    (n, s) => n + (s.counts ? s.counts[what] : 0), 0);

// ---- Colours

function paint(theme) {
    if (theme === 'auto')
        delete document.documentElement.dataset.theme;
    else
        document.documentElement.dataset.theme = theme;
}

function setUpTheme() {
    const select = by('theme');
    select.value = localStorage.getItem('theme') || 'auto';
    paint(select.value);
    select.addEventListener('change', () => {
        localStorage.setItem('theme', select.value);
        paint(select.value);
    });
}

// ---- The frame

// As it stands, where it is malformed: there is no such page then.
function decoded(word) {
    try {
        return decodeURIComponent(word);
    } catch {
        return word;
    }
}

function place() {
    const [path, search] = location.hash.replace(/^#\/?/, '').split('?');
    const [name, ...words] = path.split('/').map(decoded);
    return {name, words,
            parameters: Object.fromEntries(new URLSearchParams(search || ''))};
}

function drawNav() {
    const {name, words} = place();
    const is = {record: 'waiting', batch: 'waiting', store: '', message:
        words[1] === 'saga' ? 'sagas' : words[1]}[name] ?? name;
    update(by('nav'), h('ul', {}, pages.filter(([, text]) =>
        session.databases.length || !ofMessages.includes(text)).map(
        ([path, text, page, count, calls]) => {
        if (!page)
            return h('li', {class: 'group'}, text);
        const n = count ? count(now) : 0;
        return h('li', {}, h('a', {
            href: '#/' + path, id: 'nav-' + (path || 'overview'),
            'aria-current': path === is ? 'page' : null}, h('span', {}, text),
        n > 0 && h('span', {class: calls ? 'badge' : 'count'},
                   n.toLocaleString())));
    })));
    const here = by('nav').querySelector('[aria-current]');
    if (here) // on a narrow screen the row of pages is longer than the screen
        here.parentElement.parentElement.scrollLeft = here.offsetLeft - 60;
}

function frame(what) {
    document.body.classList.toggle('out', !what);
    by('quick').hidden = !what;
    by('sign-out').hidden = !what || !what.signs_out;
    by('who').textContent = !what ? '' : what.user +
        (what.rights.includes('decide') ? '' : ', only looking');
}

// ---- Pages

async function show() {
    if (!session)
        return;
    const mine = ++shown;
    const {name, words, parameters} = place();
    const known = pages.find(([path, , page]) => page && path === name);
    const screen = known ? known[2] : more[name];
    // Ticks are kept while what is ticked is looked at, and forgotten then.
    if (last === 'batch' && !['batch', 'waiting', 'record'].includes(name))
        ticked.set([]);
    last = name;
    refresh = null;
    drawNav();
    const page = h('div', {class: 'page'});
    const context = {
        page, session, words, parameters,
        now: () => now,
        // After a decision: what waits is less.
        async poll() {
            await lookNow();
            drawNav();
        },
        // Long work: the page is shown before it is whole; is it still wanted?
        early: () => mine === shown && !page.isConnected && fill(main, page),
        alive: () => mine === shown,
        // The head of a page: its name, and its state in a sentence.
        title(text, says, way) {
            document.title = text + ' \u2013 Once';
            return h('div', {class: 'head'}, way, h('h1', {}, h('bdi', {},
                unbroken(text))),
                     h('div', {class: 'says'}, says));
        },
        // Looks again each five seconds, while this page is shown.
        again(look) {
            if (mine === shown)
                refresh = look;
        },
    };
    try {
        if (!screen)
            throw new Problem(404, {title: 'There is no such page.'});
        await screen(context);
    } catch (e) {
        if (mine === shown && e.status === 401) {
            ended();
            return;
        }
        fill(page, context.title('Trouble'), trouble(e));
    }
    if (mine !== shown)
        return;
    if (!page.isConnected)
        fill(main, page);
    seen = Date.now();
    if (main.dataset.place !== undefined) { // not when the page was just opened
        main.focus({preventScroll: true});
        scrollTo(0, 0);
    }
    main.dataset.place = location.hash;
    say(document.title.replace(' \u2013 Once', '') + ' is shown.');
}

// ---- Looking again

// What is shown is not true any more when there is no answer: that is said above
// it until there is one, and nothing can be decided meanwhile.
function answers(problem) {
    const banner = by('away');
    main.classList.toggle('old', Boolean(problem));
    main.inert = Boolean(problem);
    if (!problem)
        fill(banner);
    else if (!banner.firstChild)
        fill(banner, box('wrong', h('p', {}, '\u2716 ' + (problem.status ?
            problem.message : 'The console does not answer.') + ' What stands ' +
            'below is of ' + new Date(seen).toLocaleTimeString(undefined,
                {timeZoneName: 'short'}) +
            ' and may not be true any more. Nothing can be decided until it ' +
            'answers; it is asked every five seconds.')));
}

function ended(text) {
    shown++;
    clearInterval(timer);
    refresh = null;
    session = null;
    answers(null);
    frame(null);
    sessionStorage.clear();
    secret.drop();
    fill(by('nav'));
    document.title = 'Signed out \u2013 Once';
    fill(main, h('div', {class: 'page'}, h('h1', {}, text || 'Your session has ended'),
        h('p', {}, 'Nothing of what was shown is kept here. Start the console ' +
          'again, or ask who runs it: the address that it prints opens a new ' +
          'session.'), h('pre', {}, START)));
    main.focus();
}

// A database that is silent takes nothing from the stores: it does not answer.
async function databases(names, signal) {
    if (!names.length)
        return [];
    try {
        return (await get('databases', signal)).databases;
    } catch (problem) {
        if (problem.status === 401)
            throw problem;
        return names.map((name) => ({name, answers: false,
            trouble: problem.status ? problem.message : 'it is still being asked',
            outbox: [], parked: [], sagas: {}}));
    }
}

async function lookNow() {
    const signal = AbortSignal.timeout(REFRESH_MS);
    const [stores, messages] = await Promise.all([get('stores', signal),
        databases(session.databases, signal)]);
    now = {...stores, databases: messages};
}

async function tick() {
    const mine = shown;
    if (!session || document.hidden)
        return;
    try {
        const is = await get('session', AbortSignal.timeout(REFRESH_MS));
        if (!session) // signed out meanwhile
            return;
        session = is;
        await lookNow();
        if (refresh)
            await refresh();
        if (mine === shown) {
            seen = Date.now();
            answers(null);
            drawNav();
        }
    } catch (e) {
        if (mine === shown && e.status === 401)
            ended();
        else if (mine === shown)
            answers(e);
    }
}

// ---- Keys

const keys = [
    ['/', 'find an order, a record or a trace id'],
    ['?', 'these keys'],
    ['Tab', 'to the next link or field; Shift and Tab go back'],
    ['Space', 'ticks a box, chooses'],
    ['Enter', 'follows a link, sends a form'],
    ['Esc', 'closes this'],
];

function ask(name, inside, ...buttons) {
    fill(by('help'), h('h2', {id: 'help-title'}, name), inside,
         h('form', {method: 'dialog', class: 'row'}, buttons));
    by('help').showModal();
}

function help() {
    ask('Keys', h('dl', {}, keys.map(([key, text]) => [
        h('dt', {}, h('kbd', {}, key)), h('dd', {}, text)])),
    h('button', {class: 'main'}, 'Close'));
}

function onKey(event) {
    const writes = event.target.closest &&
        event.target.closest('select, textarea, dialog, ' +
            'input:not([type=checkbox], [type=radio], [type=file])');
    if (writes || event.ctrlKey || event.metaKey || event.altKey || !session)
        return;
    if (event.key === '/') {
        event.preventDefault();
        by('quick-find').focus();
    } else if (event.key === '?') {
        event.preventDefault();
        help();
    }
}

// ---- Start

// The token that the console has printed is good once, and leaves the address.
// Who has its session already is let in by that.
async function exchange() {
    const match = /^#token=([0-9a-f]+)$/.exec(location.hash);
    if (!match)
        return null;
    history.replaceState(null, '', location.pathname);
    try {
        secret.keep((await post('session', {token: match[1]})).session);
        return null;
    } catch (problem) {
        return problem;
    }
}

async function enter(used) {
    try {
        session = await get('session');
    } catch (problem) {
        document.title = 'Not admitted \u2013 Once';
        frame(null);
        fill(main, h('div', {class: 'page'}, h('h1', {}, 'Not admitted'),
                     trouble(used && used.status === 401 ? used : problem),
                     (used || problem.status === 401) && [h('p', {}, 'Start the ' +
                         'console again: it prints a new address.'), h('pre', {},
                         START)]));
        return false;
    }
    return true;
}

function askSignOut() {
    ask('Sign out?', h('p', {}, 'You need a new address to come back: the console ' +
        'prints one when it is started again.'), h('button', {class: 'main',
        id: 'sign-out-now', onclick: signOut}, 'Sign out'), h('button', {},
        'Stay'));
}

async function signOut() {
    try {
        await post('session/end', {});
        ended('You are signed out');
    } catch (problem) {
        answers(problem);
    }
}

function listen() {
    window.addEventListener('hashchange', show);
    document.addEventListener('visibilitychange', tick);
    document.addEventListener('keydown', onKey);
    by('keys').addEventListener('click', help);
    by('sign-out').addEventListener('click', askSignOut);
    by('quick').addEventListener('submit', (event) => {
        event.preventDefault();
        const text = by('quick-find').value.trim();
        by('quick-find').value = '';
        if (text && look(text))
            show();
    });
}

async function start() {
    setUpTheme();
    if (!await enter(await exchange()))
        return;
    frame(session);
    listen();
    try {
        await lookNow();
    } catch {
        now = {stores: [], databases: []}; // the page says so
    }
    seen = Date.now();
    timer = setInterval(tick, REFRESH_MS);
    await show();
}

start();
