# SPDX-License-Identifier: Apache-2.0
"""
The faults of the cells: each is played, and healed, and says in `run.hits` how
often it hit something; what a proxy did is counted there. `run` is a Run of
cells.py: its processes, its servers, its proxies, its random numbers.
"""

import signal
import time

import wire
from servers import COMMITTING

FAULTS = {}
MINUTE = 60000
LEASE = 3.0     # seconds, of a relay


def fault(name, **options):
    """
    Where it is played and what a run is to have for it: databases, brokers;
    clocks, whose can be moved; segfaults, whether consumers may die of them;
    orders and pause, of the producers; direct, whether these are spared what
    happens on the wire; consumer, options of these; keyed, whether there is but
    one and each key in order; tended, whether an operator drops what is dead;
    doubt, whether rows may be indeterminate; late, whether copies may come after
    the window; plain, whether a service gets no copies from the relay; healed,
    what the clocks show in the end; target, options of the broker's; number, how
    often it is played; most, how often at most.
    """
    def register(function):
        FAULTS[name] = (function, options)
        return function
    return register


@fault("none", number=1)
def none(run):
    """Copies and poison alone."""
    run.hits += 1


QUEUES = ["rabbitmq", "nats", "redis", "kafka"]  # what consumers read

# -- processes


@fault("kill-relay")
def kill_relay(run):
    """kill -9 of a relay."""
    run.one(run.relays).restart()


@fault("kill-consumer", brokers=QUEUES)
def kill_consumer(run):
    """kill -9 of a consumer."""
    run.one(run.consumers).restart()


@fault("kill-producer", pause=20)
def kill_producer(run):
    """kill -9 of a program that emits."""
    run.one(run.producers).restart()


@fault("relay-stopped")
def relay_stopped(run):
    """A relay stands still past its lease, and goes on."""
    relay = run.one(run.relays)
    relay.signal(signal.SIGSTOP)
    run.nap(LEASE + 0.2, LEASE + 1)
    relay.signal(signal.SIGCONT)


@fault("consumer-stopped", brokers=QUEUES, most=12)
def consumer_stopped(run):
    """A consumer stands still: past the broker's patience and its lease."""
    consumer = run.one(run.consumers)
    consumer.signal(signal.SIGSTOP)
    run.nap(*run.rng.choice([(0.1, 0.5), (LEASE + 0.2, LEASE + 1)]))
    consumer.signal(signal.SIGCONT)


@fault("batch", brokers=QUEUES, consumer={"batch": 50, "workers": 1})
def batch(run):
    """kill -9 of a consumer that books fifty messages in one transaction, two
    copies of one among them."""
    run.one(run.consumers).restart()


@fault("segfault", brokers=QUEUES, segfaults=True, orders="kill",
       consumer={"attempts": 10})
def segfault(run):
    """Some orders kill the handler's process when they come first, and some
    whenever they come."""
    run.nap(0, 0.1)


@fault("keyed", brokers=QUEUES, keyed=True, orders="well",
       consumer={"keyed": 1, "workers": 1})
def keyed(run):
    """kill -9 of the one consumer that books each key in its order."""
    run.one(run.consumers).restart()


@fault("poison-keyed", brokers=QUEUES, keyed=True, tended=True,
       consumer={"keyed": 1, "workers": 1, "attempts": 5})
def poison_keyed(run):
    """The same; dead letters keep their key waiting, and an operator drops
    them."""
    run.one(run.consumers).restart()


@fault("poison-head", brokers=["http"], tended=True)
def poison_head(run):
    """kill -9 of a relay; rows that the service has refused keep their key
    waiting, and an operator drops them."""
    run.one(run.relays).restart()


# -- brokers


@fault("broker-kill", brokers=QUEUES)
def broker_kill(run):
    """kill -9 of the broker, and a start."""
    run.broker.server.kill()
    run.nap(0, 0.3)
    run.broker.server.start()
    run.hits += 1


@fault("broker-one", brokers=["kafka"])
def broker_one(run):
    """One of three brokers is cut off; its partitions go to the others."""
    one = run.rng.randrange(1, 4)
    run.broker.server.ask("down %d" % one)
    run.nap(0.2, 3)
    run.broker.server.ask("up %d" % one)
    run.hits += 1


@fault("broker-says", brokers=["kafka"])
def broker_says(run):
    """The next requests to write or to commit are answered with errors."""
    api, codes = run.rng.choice([
        (0, (7, 19, 20, 6, -195)),      # produce
        (8, (14, 15, 16, 27, -195)),    # commit
        (1, (3, 6, -195))])             # fetch
    run.broker.server.ask("errors %d %s" % (api, " ".join(
        str(run.rng.choice(codes)) for _ in range(run.rng.randrange(1, 9)))))
    run.hits += 1


@fault("topic-unknown", brokers=["kafka"])
def topic_unknown(run):
    """Brokers do not know the topic, as one that has just started."""
    run.broker.server.ask("state orders 3")
    run.nap(*run.rng.choice([(0.1, 1), (10, 12)]))  # a consumer asks each 10 s
    run.broker.server.ask("state orders 0")
    run.hits += 1


@fault("rebalance", brokers=["kafka"])
def rebalance(run):
    """A guest joins the group for a second, and leaves it in order."""
    run.guest().start()
    run.nap(1, 2)
    run.consumers.pop().stop()
    run.hits += 1


@fault("broker-pause", brokers=QUEUES)
def broker_pause(run):
    """SIGSTOP, mostly for longer than a proof may take."""
    run.broker.server.pause()
    run.nap(*run.rng.choice([(0.01, 0.1), (0.5, 1), (1.5, 3)]))
    run.broker.server.resume()
    run.hits += 1


@fault("gateway-kill", brokers=["http"], doubt=True)
def gateway_kill(run):
    """kill -9 of the gateway: what it had under way is in doubt."""
    broker_kill(run)


@fault("gateway-pause", brokers=["http"], doubt=True)
def gateway_pause(run):
    """SIGSTOP of the gateway."""
    broker_pause(run)


@fault("service-kill", brokers=["http"], doubt=True)
def service_kill(run):
    """kill -9 of the service behind the gateway."""
    run.broker.payments.kill()
    run.nap(0, 0.3)
    run.broker.payments.start()
    run.hits += 1


@fault("unroutable", brokers=["rabbitmq"])
def unroutable(run):
    """For a while no queue takes what is sent: it is returned."""
    run.broker.unbind()
    run.nap(0.1, 1)
    run.broker.bind()
    run.hits += 1


@fault("full", brokers=["rabbitmq"], target={"length": 40}, most=6)
def full(run):
    """The queue is full, since consumers stand still: it answers nack."""
    for consumer in run.consumers:
        consumer.signal(signal.SIGSTOP)
    run.nap(0.5, 2)
    for consumer in run.consumers:
        consumer.signal(signal.SIGCONT)


# -- servers of databases

SERVERS = ["postgres", "mysql"]


@fault("db-kill", databases=SERVERS)
def db_kill(run):
    """kill -9 of all of its processes, and a start."""
    run.db.server.kill()
    run.nap(0, 0.3)
    run.db.server.start()
    run.hits += 1


@fault("db-stop", databases=SERVERS)
def db_stop(run):
    """Its immediate shutdown, and a start."""
    run.db.server.quit()
    run.db.server.start()
    run.hits += 1


@fault("db-terminate", databases=SERVERS)
def db_terminate(run):
    """An administrator ends every connection."""
    run.hits += run.db.server.terminate()


@fault("db-terminate-commit", databases=["postgres"])
def db_terminate_commit(run):
    """pg_terminate_backend() of one that is flushing its COMMIT at this moment."""
    run.hits += run.db.server.terminate(COMMITTING, 20000)


# -- the wire, on either side of relay and consumer


def on_the_wire(side, function):
    def played(run):
        run.proxy = run.proxies[side]
        function(run)
    played.__doc__ = function.__doc__
    return played


for _name, _function in wire.FAULTS.items():
    if _name == "slow":
        continue
    # Silence takes its time until it is noticed. Producers are the test's own:
    # they would wait for an answer of the database for ever.
    _more = {"most": 2} if _name == "silence" else {}
    # Not with Kafka, whose clients go to where brokers say that they are.
    fault("broker-" + _name, brokers=["rabbitmq", "nats", "redis", "http"],
          **_more)(on_the_wire("broker", _function))
    if _more:
        _more["direct"] = True
    fault("db-" + _name, databases=SERVERS, **_more)(
        on_the_wire("db", _function))


# -- clocks


def step(run, names):
    run.world.step(run.rng.choice(names), run.rng.choice(
        [0, 10 * MINUTE, -10 * MINUTE]))
    run.hits += 1
    run.nap(0, 0.3)
    if run.db.name == "sqlite":
        # Its rows are dated by the programs. What a clock that was ahead has
        # made wait is due when the others get there.
        for name in names:
            run.world.step(name, 10 * MINUTE)


# Not with NATS: its library waits until times of the clock that we replace, by
# calls that we do not replace.
@fault("clock-programs", brokers=["rabbitmq", "redis"], clocks=[
    "relay1", "relay2", "consumer1", "consumer2"])
def clock_programs(run):
    """The clock of a relay or a consumer jumps by ten minutes."""
    step(run, run.clocks)


@fault("clock-db", databases=["postgres"], clocks=["postgres"])
def clock_db(run):
    """The clock of the database jumps by ten minutes."""
    step(run, run.clocks)


# -- all


@fault("storm")
def storm(run):
    """Any of the others, whatever comes."""
    names = [name for name, (_, options) in FAULTS.items()
             if name != "storm" and run.db.name in options.get(
                 "databases", [run.db.name]) and
             run.broker.name in options.get("brokers", [run.broker.name]) and
             not set(options) - {"databases", "brokers", "most"}]
    name = run.rng.choice([n for n in names if "silence" not in n])
    run.note(name)
    FAULTS[name][0](run)
    time.sleep(0.05)
