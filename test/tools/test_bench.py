# SPDX-License-Identifier: Apache-2.0
"""What test/bench/gateway.py says of other gateways is true, and what somebody has
written by hand behind its tables stays. Nothing here looks at a time."""

import argparse
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load():
    """Under a name of its own: test/gateway has a gateway.py, too."""
    bench = ROOT / 'test' / 'bench'
    sys.path.append(str(bench))
    spec = importlib.util.spec_from_file_location(
        'bench_gateway', bench / 'gateway.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gateway = load()

NGINX = shutil.which('nginx') or '/usr/sbin/nginx'
REFUSES = """
daemon off; worker_processes 1; {user} pid {dir}/pid;
error_log {dir}/error.log;
events {{ worker_connections 512; }}
http {{ {temp} access_log off; server {{ listen 127.0.0.1:{port};
    location / {{ return 503; }} }} }}
"""


@pytest.fixture(scope='module')
def rows(tmp_path_factory):
    """The rows of one group of measurements with two peers, by title. One is a
    plain proxy, which executes every repeat; the other refuses everything."""
    folder = tmp_path_factory.mktemp('bench')
    port = gateway.free_port()
    proxy = gateway.Nginx(NGINX, folder / 'proxy', gateway.FRONT, workers=1,
                          load='', store='', guard='', upstream=port,
                          keepalive=gateway.KEEPALIVE)
    closed = gateway.Nginx(NGINX, folder / 'closed', REFUSES)
    peers = [gateway.peer(f'{name}=http://127.0.0.1:{n.port}')
             for name, n in (('proxy', proxy), ('closed', closed))]
    nobody = gateway.peer(f'nobody=http://127.0.0.1:{gateway.free_port()}')
    args = argparse.Namespace(
        nginx=NGINX, wrk=shutil.which('wrk'), seconds=1, plain_only=True,
        with_lua=(gateway.MODULES / 'ngx_http_lua_module.so').exists(),
        peers=[*peers, nobody], upstream_port=port)
    world = gateway.servers.World()
    bench = None
    try:
        bench = gateway.Bench(args, folder, world)
        bench.group(0, 1, 4)
        lines = [gateway.row(bench.results, (name, 1, 4), title)
                 for name, title, _ in gateway.targets(args)]
        yield lines, gateway.not_2xx(bench.results)
    finally:
        if bench:
            bench.close()
        proxy.stop()
        closed.stop()
        world.close()


def row_of(rows, title):
    found = [line for line in rows[0] if line.startswith(f'| {title}')]
    assert len(found) == 1, rows
    return [cell.strip() for cell in found[0].strip('|').split('|')]


def test_a_peer_that_executes_repeats_is_shown_as_such(rows):
    row = row_of(rows, 'replays, proxy')
    assert '**executed again** 1.0' in row[0]
    assert row[1] != '-'
    assert row[6] == '-', 'we do not know its CPU'


def test_of_its_new_keys_there_is_nothing_to_say(rows):
    assert row_of(rows, 'new keys, proxy')[0] == 'new keys, proxy'


def test_a_peer_that_refuses_is_shown_as_such(rows):
    row = row_of(rows, 'new keys, closed')
    assert '20 of 20 repeats **answered otherwise**' in row[0]
    assert int(row[-1]) > 0, 'not 2xx'


def test_a_peer_that_is_not_there_is_shown_as_such(rows):
    row = row_of(rows, 'new keys, nobody')
    assert '**failed** in 1 of 1 rounds' in row[0]
    assert set(row[1:]) == {'-'}


def test_what_peers_do_is_no_failure_of_ours(rows):
    assert rows[1] == 0


def test_the_lua_gateway_replays(rows):
    if not (gateway.MODULES / 'ngx_http_lua_module.so').exists():
        pytest.skip("Debian's libnginx-mod-http-lua is not installed")
    for kind in ('new keys', 'replays'):
        row = row_of(rows, kind + ', Lua')
        assert '(' not in row[0] and row[-1] == '0', row


@pytest.mark.parametrize('replays, executed, said', [
    (False, 100, ''), (False, 104, ''), (False, 105, 'executed 1.05 times'),
    (False, 99, 'executed 0.99 times'), (True, 0, ''),
    (True, 1, '**executed again** 0.01 times')])
def test_executions_are_counted(replays, executed, said):
    run = {'requests': 110, 'bad': 10, 'executed': executed, 'connections': 4,
           'otherwise': 0}
    assert gateway.counted(replays, [run]) == (said and f' (each {said})')


@pytest.mark.parametrize('text', [
    'http://127.0.0.1:1', 'a b=http://127.0.0.1:1', 'a=https://127.0.0.1:1',
    'a=127.0.0.1:1', 'a=http://', 'a=http://127.0.0.1:x'])
def test_a_peer_that_is_not_understood_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        gateway.peer(text)


def test_a_store_is_measured_as_it_grows_and_nothing_is_left(tmp_path):
    page = tmp_path / 'page.md'
    page.write_text('<!-- by hand -->\nSeen.\n')
    folder = gateway.BUILD / 'test-scale'
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if gateway.filesystem(folder) in ('tmpfs', 'ramfs'):
        pytest.skip('the build is in memory, which the bench refuses')
    device = folder.stat().st_dev
    if not pathlib.Path(f'/sys/dev/block/{os.major(device)}:{os.minor(device)}'
                        '/stat').exists():
        pytest.skip('the build is on no disk that counts what is written')
    try:
        subprocess.run(
            [sys.executable, ROOT / 'test' / 'bench' / 'scale.py', '--only',
             'journal', '--most', '10000', '--rounds', '1', '--dir', folder,
             '--out', page], check=True, capture_output=True)
        assert not list(folder.iterdir())
    finally:
        shutil.rmtree(folder)
    text = page.read_text()
    rows = [line.split('|') for line in text.splitlines()
            if line.startswith(('| 1,000 |', '| 10,000 |'))]
    assert len(rows) == 4
    assert [r[3].strip() for r in rows[:1]] == ['1.00']
    assert all(int(r[3].replace(',', '')) >= 64 for r in rows[2:]), \
        'a slot of the index has 64 bytes'
    assert text.endswith('<!-- by hand -->\nSeen.\n')


def test_what_was_written_by_hand_is_kept(tmp_path):
    page = tmp_path / 'page.md'
    assert gateway.by_hand(page) == ''
    page.write_text('a table\n\n<!-- by hand -->\n### Before\n\n| 1 |\n')
    page.write_text('a new table\n' + gateway.by_hand(page))
    assert page.read_text() == (
        'a new table\n\n<!-- by hand -->\n### Before\n\n| 1 |\n')
