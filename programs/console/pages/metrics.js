// SPDX-License-Identifier: Apache-2.0
//
// metrics.js - the last hour of gateways, relays and consumers in plots: those of
// the dashboard (ops/grafana), without a Prometheus.

import {h, update, get, mark, age, table, panel, span} from './dom.js';
import {parse, plot, sums, quantile} from './plot.js';

// ---- Where the numbers are from

function kindOf(source) {
    const names = Object.keys(source.gauges).map(parse);
    const build = names.find(([n]) => n === 'once_build_info');
    if (build)
        return 'gateway, Once ' + build[1].version + ', nginx ' + build[1].nginx;
    const is = (begin) => names.some(([n]) => n.startsWith(begin));
    return is('once_relay') ? 'relay' : is('once_consumer') ? 'consumer' :
        source.up ? 'metrics' : 'not reached yet';
}

// The stores that it does not reach.
const unreached = (source) => Object.entries(source.gauges).filter(
    ([key, value]) => parse(key)[0] === 'once_store_up' && value === 0).map(
    ([key]) => parse(key)[1].store);

export function sources(m) {
    return m.sources.length > 0 && panel('Gateways, relays and consumers', null,
        table('Gateways, relays and consumers', ['Name', 'State', 'For'],
            m.sources.map((s) => {
                const away = unreached(s);
                return {key: 'source-' + s.name, cells: [
                    [{class: 'text'}, h('b', {}, s.name),
                     h('span', {class: 'hint'}, kindOf(s))],
                    [{}, !s.up ? mark('wrong', s.since ? 'does not answer: ' +
                        s.trouble : 'not asked yet') : away.length ?
                        mark('wrong', 'its store ' + away.join(', ') +
                            ' does not answer') : mark('done', 'healthy')],
                    [{class: 'tight figures'}, age(s.since, m.now)]]};
            })));
}

// ---- The plots

const ms = (s) => s === null ? '\u2013' : s >= 1 ? s.toFixed(1) + ' s' :
    (1000 * s).toPrecision(2) + ' ms';

const stores = (m, what) => new Map(m.stores.map((s) => [s.name, s[what]]));
const count = (m, name, by, where) => sums(m, name, (l) => l[by] || '\u2013', where);
const is = (name, value) => (l) => l[name] === value;

// Several counters, each by a name of its own.
const several = (m, names) => new Map(Object.entries(names).map(
    ([name, counter]) => [name, sums(m, counter, () => '').get('') || []]));

const quantiles = (name) => (m) => [new Map([['half', 0.5], ['95 of 100', 0.95],
    ['99 of 100', 0.99]].map(([text, part]) => [text, quantile(m, name, part)])),
{what: ms}];

function ratio(m, above, below) {
    const of = count(m, above, 'store'), by = count(m, below, 'store');
    return new Map([...of].map(([s, values]) => [s, values.map((v, i) =>
        by.has(s) && by.get(s)[i] ? v / by.get(s)[i] : null)]));
}

const each = {counted: true, hint: 'each minute'};

// [name, what it shows]
const groups = [
    ['Is any outcome unknown?', [
        ['Outcomes unknown', (m) => [stores(m, 'waiting'), {own: true}]],
        ['In flight', (m) => [stores(m, 'in_flight'), {own: true}]],
        ['Attempts without an outcome, by reason', (m) => [count(m,
            'once_attempts_total', 'reason', is('outcome', 'indeterminate')), each]],
    ]],
    ['What clients were told', [
        ['Requests by what was told', (m) => [count(m, 'once_requests_total',
            'status'), each]],
        ['Attempts by outcome', (m) => [count(m, 'once_attempts_total',
            'outcome'), each]],
        ['Requests by route', (m) => [sums(m, 'once_requests_total', (l) =>
            l.route === '-' ? l.store : l.store + ', ' + l.route), each]],
        ['Released, by reason', (m) => [count(m, 'once_attempts_total', 'reason',
            is('outcome', 'released')), each]],
        ['Dry run: what would have become', (m) => [count(m, 'once_would_total',
            'would'), each]],
        ['Services asked, by their answer', (m) => [count(m, 'once_probes_total',
            'answer'), each]],
    ]],
    ['What Once costs', [
        ['Before the service: claim', quantiles('once_claim_duration_seconds')],
        ['Behind the service: complete', quantiles('once_complete_duration_seconds')],
        ['Whole attempt', quantiles('once_attempt_duration_seconds')],
    ]],
    ['Stores, as the gateways see them', [
        ['Time of a batch', quantiles('once_store_batch_duration_seconds')],
        ['Operations in a batch', (m) => [ratio(m, 'once_store_operations_total',
            'once_store_batches_total'), {what: (n) => n.toFixed(1)}]],
        ['Trouble', (m) => [several(m, {
            unanswered: 'once_store_unanswered_total',
            repeated: 'once_store_repeated_total', busy: 'once_store_busy_total',
            corrupt: 'once_store_corrupt_total',
            'rolled back': 'once_store_rollbacks_total'}), each]],
        ['Leases renewed', (m) => [count(m, 'once_leases_renewed_total', 'store'),
                                   each]],
        ['Forgotten and reaped', (m) => [several(m, {
            forgotten: 'once_records_forgotten_total',
            reaped: 'once_records_reaped_total'}), each]],
    ]],
    ['Messages', [
        ['Rows that targets have taken, by route', (m) => [count(m,
            'once_relay_taken_total', 'route'), each]],
        ['Attempts that did not end well', (m) => [several(m, {
            refused: 'once_relay_refused_total', 'outcome unknown':
            'once_relay_silent_total', 'not reached': 'once_relay_away_total'}),
        each]],
        ['Rows that need a decision', (m) => [several(m, {
            dead: 'once_relay_dead_total', 'outcome unknown':
            'once_relay_indeterminate_total'}), each]],
    ]],
];

// Of what is not an hour but a moment.
const moments = [
    ['once_sweep_last_timestamp_seconds', 'Expired records were last looked for',
        (v, now) => v ? span(now - 1000 * v) + ' ago' : 'not yet'],
    ['once_sweep_stopped', 'Its clock is trusted', (v) => v ? 'no' : 'yes'],
    ['once_store_incarnation', 'Restored', (v) => v > 1 ? v - 1 + ' times' : 'never'],
    ['once_store_gap_until_timestamp_seconds', 'Gap of a restore', (v, now) =>
        1000 * v > now ? span(1000 * v - now) + ' left' : 'none'],
    ['once_attempts_waiting', 'Attempts that wait for another', (v) => String(v)],
    ['once_operations_queued', 'Operations that wait for the store', (v) => String(v)],
];

function nowOf(m) {
    const rows = m.sources.flatMap((s) => Object.entries(s.gauges).flatMap(
        ([key, value]) => {
            const [name, labels] = parse(key);
            const one = moments.find(([n]) => n === name);
            return one ? [{key: s.name + key, cells: [[{class: 'text'}, s.name +
                ', store ' + labels.store], one[1],
            [{class: 'figures'}, one[2](value, Date.parse(m.now))]]}] : [];
        }));
    return rows.length > 0 && panel('Now', null, table('Now', ['Gateway', 'What',
        'Value'], rows));
}

const none = () => h('div', {class: 'box'}, h('p', {}, 'What the stores hold is ' +
    'below. To see what gateways, relays and consumers count, start the console ' +
    'with --watch and the address of a gateway\u2019s status page, or the file ' +
    'of a relay\u2019s metrics: '), h('pre', {},
'once console --watch http://127.0.0.1:8081/once_status \u2026'));

export async function metrics({page, title, again}) {
    const body = h('div', {class: 'page'});
    async function look() {
        const m = await get('metrics');
        const any = (name) => m.sources.length > 0 ||
            name === 'Is any outcome unknown?';
        const relays = m.sources.some((s) => kindOf(s) === 'relay');
        update(body, !m.sources.length && none(), sources(m),
            groups.filter(([name]) => any(name) && (name !== 'Messages' || relays))
                .map(([name, plots]) => h('section', {'data-key': 'group-' + name},
                    h('h2', {class: 'over'}, name), name === groups[0][0] &&
                        h('p', {}, h('a', {href: '#/waiting'}, 'What waits for you')),
                    h('div', {class: 'grid wide'},
                    plots.map(([text, of]) => {
                        const [all, how] = of(m);
                        return plot(m, text, all, how);
                    })))), nowOf(m));
        return m;
    }
    page.append(title('Metrics', 'The last hour, as far as this console has seen ' +
        'it; it keeps it in memory only.'), body);
    await look();
    again(look);
}
