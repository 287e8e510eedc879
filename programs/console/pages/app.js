// SPDX-License-Identifier: Apache-2.0
//
// app.js - which screen, for whom, in which colours; and looking again.

import {h, fill, get, post, box, say, trouble} from './dom.js';
import {overview, waiting, live, audit, store} from './lists.js';
import {record, find} from './record.js';
import {batch} from './decide.js';

const REFRESH_MS = 5000;

const screens = [
    ['', 'Overview', overview],
    ['waiting', 'Waiting', waiting],
    ['live', 'In flight', live],
    ['find', 'Find', find],
    ['audit', 'Audit', audit],
];
const more = {record, batch, store};

const main = document.getElementById('main');
let session = null;
let shown = 0;       // which screen is shown: an answer for another is dropped
let refresh = null;  // looks again, or null
let seen = 0;        // when the console answered last

// ---- Colours

function paint(theme) {
    if (theme === 'auto')
        delete document.documentElement.dataset.theme;
    else
        document.documentElement.dataset.theme = theme;
}

function setUpTheme() {
    const select = document.getElementById('theme');
    select.value = localStorage.getItem('theme') || 'auto';
    paint(select.value);
    select.addEventListener('change', () => {
        localStorage.setItem('theme', select.value);
        paint(select.value);
    });
}

// ---- Screens

function place() {
    const [path, search] = location.hash.replace(/^#\/?/, '').split('?');
    const [name, ...words] = path.split('/').map(decodeURIComponent);
    return {name, words,
            parameters: Object.fromEntries(new URLSearchParams(search || ''))};
}

function drawNav(name) {
    fill(document.getElementById('nav'), h('ul', {}, screens.map(
        ([path, title]) => h('li', {}, h('a', {
            href: '#/' + path, id: 'nav-' + (path || 'overview'),
            'aria-current': path === name ? 'page' : null}, title)))));
}

async function show() {
    const mine = ++shown;
    const {name, words, parameters} = place();
    const known = screens.find(([path]) => path === name);
    const screen = known ? known[2] : more[name];
    refresh = null;
    drawNav(name);
    const page = h('div', {});
    const context = {
        page, session, words, parameters,
        title(text) {
            document.title = text + ' \u2013 Once';
            return h('h1', {}, text);
        },
        // Looks again each five seconds, while this screen is shown.
        again(look) {
            if (mine === shown)
                refresh = look;
        },
    };
    try {
        if (!screen)
            throw new Error('there is no such screen');
        await screen(context);
    } catch (e) {
        fill(page, context.title('Trouble'), trouble(e));
    }
    if (mine !== shown)
        return;
    fill(main, page);
    seen = Date.now();
    if (main.dataset.place !== undefined) // not when the page was just opened
        main.focus();
    main.dataset.place = location.hash;
    say(document.title.replace(' \u2013 Once', '') + ' is shown.');
}

// What is shown is not true any more when nobody answers: that is said above it
// until an operator does, on each screen.
function answers(problem) {
    const place = document.getElementById('away');
    main.classList.toggle('old', Boolean(problem));
    if (!problem)
        fill(place);
    else if (!place.firstChild)
        fill(place, box('wrong', h('p', {}, '\u2716 ' + (problem.status ?
            problem.message : 'The console does not answer.') + ' What stands ' +
            'below is of ' + new Date(seen).toLocaleTimeString() +
            ' and may not be true any more.')));
}

async function tick() {
    const mine = shown;
    if (document.hidden)
        return;
    try {
        await get('session', AbortSignal.timeout(REFRESH_MS));
        if (refresh)
            await refresh();
        if (mine === shown) {
            seen = Date.now();
            answers(null);
        }
    } catch (e) {
        if (mine === shown)
            answers(e);
    }
}

// ---- Start

// The token that the console has printed is good once, and leaves the address.
async function exchange() {
    const match = /^#token=([0-9a-f]+)$/.exec(location.hash);
    if (!match)
        return;
    history.replaceState(null, '', location.pathname);
    await post('session', {token: match[1]});
}

async function start() {
    setUpTheme();
    try {
        await exchange();
        session = await get('session');
    } catch (e) {
        document.title = 'Not admitted \u2013 Once';
        fill(main, h('h1', {}, 'Not admitted'), trouble(e));
        return;
    }
    document.getElementById('who').textContent = session.user +
        (session.rights.includes('decide') ? '' : ', only looking');
    window.addEventListener('hashchange', show);
    seen = Date.now();
    setInterval(tick, REFRESH_MS);
    document.addEventListener('visibilitychange', tick);
    await show();
}

start();
