# SPDX-License-Identifier: Apache-2.0
"""
judge.py - compares what an application did with what its clients received.

Each rule is a function that returns texts, one for each fault. The application's
log is the truth about effects; the answers are the truth about clients.
"""

import json

# Problems that tell a client to come again, and nothing about the outcome.
LATER = ("in-flight", "store-unavailable")


class Story:
    """A case with its log and its answers. `final` is the answer of the repeat
    that was sent until it was no longer told to come again."""

    def __init__(self, case, events, told, final, recorded_500=False):
        self.case, self.events = case, events
        self.told, self.final = told, final
        self.recorded_500 = recorded_500
        self.runs = {e["run"] for e in events
                     if e["event"] in ("effect", "raised")}
        self.finished = [e for e in events if e["event"] == "finished"]
        self.raised = any(e["event"] == "raised" for e in events)

    def of(self, kind):
        return [e for e in self.events if e["event"] == kind]

    def whole(self, order=None):
        """(send, answer) of each answer that its client received whole."""
        return [(s, a) for s, a in self.told if a is not None and a.whole and
                (order is None or s.order == order)]

    def final_code(self):
        return self.final.code() if self.final else "no answer"


def is_body_refused(story, send, answer):
    """A body that was read before the guard is refused, if it is seen. An empty one
    in chunks looks the same where the framework does not say what it has read."""
    return answer.status == 500 and not answer.code() and \
        not story.case.do.get("fingerprint") and \
        (story.case.do.get("outer") or
         (send.framing == "chunked" and story.case.size == 0))


def is_begun(story, answer, recorded):
    """A flush has sent the head, with the status that there was."""
    return "flush" in story.case.do.get("extra", ()) and \
        answer.shown()[1] == recorded[1]


def is_not_kept(story, answer):
    """A stream, or an answer that is too long."""
    return answer.code() == "response-unavailable" and (
        story.case.do.get("answer") in ("stream", "large") or
        "flush" in story.case.do.get("extra", ()))


def one_effect(story):
    if len(story.of("effect")) > 1 or len(story.runs) > 1:
        yield "the handler ran %d times, with %d effects" % (
            len(story.runs), len(story.of("effect")))


def orders_apart(story):
    """Only one of two orders gets a successful answer."""
    got = {s.order for s, a in story.whole() if a.status < 300}
    if story.final and story.final.status < 300 and story.final.whole:
        got.add("A")
    if len(got) > 1:
        yield "two orders under one key both got a success"


def is_part_passed_on(story):
    """An outer layer that reads bodies makes a request of a part of one, where the
    client left within it."""
    return story.case.do.get("outer") and \
        story.case.sends[0].leave in ("head", "part")


def same_as_recorded(story):
    """What the handler finished is what each client gets, in time."""
    if not story.finished or story.case.do.get("answer") in ("large", "short") \
            or story.case.do.get("after") or is_part_passed_on(story):
        return
    recorded = story.finished[0]["status"], story.finished[0]["body"]
    executed = "B" if any(s.order == "B" and a.shown() == recorded
                          for s, a in story.whole()) else "A"
    for send, answer in [*story.whole(), (story.case.sends[0], story.final)]:
        if answer is None or send.order != executed or \
                is_body_refused(story, send, answer) or \
                is_not_kept(story, answer) or is_begun(story, answer, recorded):
            continue
        code = answer.code()
        if code in LATER and answer is not story.final:
            continue
        if answer.shown() != recorded:
            yield "the handler finished with %d, and a client got %d %s" % (
                recorded[0], answer.status, code or answer.body[:60])


def exception_is_unknown(story):
    """What a handler that raised has done is not known, and nothing else is
    ever said of it."""
    if not story.raised or story.finished:
        return
    for send, answer in [*story.whole("A"), (story.case.sends[0], story.final)]:
        if answer is None or answer.code() in (*LATER, "outcome-unknown") or \
                is_body_refused(story, send, answer):
            continue
        if story.recorded_500 and answer.status == 500:
            continue
        if answer.code() == "key-reused" and send.order == "A":
            continue        # the other order was the first one to arrive
        yield "the handler raised, and a client got %d %s" % (
            answer.status, answer.code() or answer.body[:60])


def short_is_unknown(story):
    if story.case.do.get("answer") == "short" and story.finished and \
            story.final_code() not in ("outcome-unknown", "key-reused") and \
            not story.recorded_500:
        yield "an answer that was cut short was recorded: %s" % (
            story.final_code() or story.final.status)


def cut_off_is_unknown(story):
    """After a time-out or a cancellation the outcome is not known, or it is
    what the handler finished in time."""
    if story.case.do.get("after") not in ("timeout", "cancel") or \
            not story.of("effect") or story.final is None:
        return
    finished = [(e["status"], e["body"]) for e in story.finished]
    if story.final_code() in ("outcome-unknown", "key-reused") or \
            story.final.shown() in finished or \
            (finished and is_not_kept(story, story.final)) or \
            is_body_refused(story, story.case.sends[0], story.final):
        return
    if story.recorded_500 and story.final.status >= 500:
        return
    yield "the handler was cut off, and the repeat got %d %s" % (
        story.final.status, story.final_code() or story.final.body[:60])


def nobody_leaves_inside(story):
    """Nothing inside the guard learns that the client left before the answer
    is told; a stream is told before it ends."""
    if story.case.do.get("after") in ("timeout", "cancel") or \
            story.case.do.get("answer") == "short" or \
            (story.final and is_not_kept(story, story.final)):
        return
    kinds = [e["event"] for e in story.events
             if e["event"] in ("disconnect", "finished", "raised")]
    if kinds and kinds[0] == "disconnect":
        yield "the handler was told that the client left"


def no_early_leak(story):
    """A hint belongs to an answer that is recorded."""
    for _, answer in story.whole():
        if answer.hints and answer.code() == "outcome-unknown":
            yield "early hints left, and the outcome is unknown"


def all_answered(story):
    for send, answer in story.told:
        if not send.leave and answer is None:
            yield "a request of order %s got no answer" % send.order
    if story.final is None or story.final_code() in LATER:
        yield "the last repeat got %s" % story.final_code()


RULES = (one_effect, orders_apart, same_as_recorded, exception_is_unknown,
         short_is_unknown, cut_off_is_unknown, nobody_leaves_inside,
         no_early_leak, all_answered)


def faults(story):
    return ["%s: %s" % (rule.__name__, text)
            for rule in RULES for text in rule(story)]


def events_of(path, keys):
    """The log, by key. A line of another key is the application's mistake."""
    found = {key: [] for key in keys}
    with open(path, encoding="utf-8") as f:
        for line in f:
            event = json.loads(line)
            found[event["key"]].append(event)
    return found
