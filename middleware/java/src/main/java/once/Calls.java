// SPDX-License-Identifier: Apache-2.0
package once;

import java.lang.System.Logger.Level;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;

/**
 * Functions in place of requests, by `once serve`: each runs at most once for a group and a key,
 * and every repeat gets its result.
 *
 * <pre>
 * Calls once = new Calls(new Once.Options().serve("unix:/run/once/serve.sock"));
 * byte[] receipt = once.call("charge", "order-42", "12.50", () -> charge());
 * </pre>
 *
 * It refuses to give a result before the server has said that it is durable.
 */
public final class Calls {
    private static final long LEASE_MS = 30_000; // of a call that gives none
    private final Server server;

    /** Thrown by the work of a call that has done nothing: the key is free. */
    public static class NotApplied extends RuntimeException {
        private static final long serialVersionUID = 1;

        public NotApplied(String text, Throwable cause) { super(text, cause); }
    }

    /** A call has no result to give. */
    public static final class NoResult extends Exception {
        private static final long serialVersionUID = 1;
        private static final Map<String, String> NEXT = Map.of(
                "in-flight", "another call of this key runs; call again after retryAfterMs",
                "mismatch", "this key belongs to a call with another fingerprint, and nothing was"
                        + " run; use another key for another call",
                "indeterminate", "what a call of this key has done is not known; find it out, and"
                        + " say so with `once resolve`",
                "unstored", "an operator has resolved this key without a result",
                "failure", "a call of this key has failed, with `code` and `body`",
                "unavailable", "`once serve` gave no answer (the log has its words), and nothing"
                        + " was run; call again with the same key");
        /** in-flight, mismatch, indeterminate, unstored and failure as the server says them;
         *  unavailable: nothing was done. */
        public final String state;
        /** Of in-flight: when to ask again. */
        public final long retryAfterMs;
        /** Of a failure that a program in another language has recorded: code and result. */
        public final int code;
        public final byte[] body;

        private NoResult(String state, Server.Told told) {
            super("once: " + state + ": " + NEXT.getOrDefault(state, "see docs/serve.md"));
            this.state = state;
            retryAfterMs = told == null ? 0 : told.number("retry_after_ms");
            code = told == null ? 0 : (int) told.number("code");
            body = told == null ? Answer.NONE : told.body();
        }
    }

    /** Of the options only where the server is, and the log. */
    public Calls(Once.Options o) { server = new Server(o); }

    /** See the other. */
    public byte[] call(String group, String key, String fingerprint, Callable<byte[]> work)
            throws Exception {
        return call(group, key, fingerprint, Map.of(), work);
    }

    /** `more` has members of the protocol: wait_ms, run_ms, lease_ms, keep_ms, label. What the
     *  work throws is thrown on, and what it did is not known from then on, unless it is
     *  NotApplied: then the key is free. */
    public byte[] call(String group, String key, String fingerprint, Map<String, ?> more,
            Callable<byte[]> work) throws Exception {
        if (group == null || group.isBlank() || key == null || key.isBlank()
                || fingerprint == null) {
            throw new IllegalArgumentException("once: nothing was run: group \"" + group
                    + "\" and key \"" + key + "\" must be texts that are not blank, and the"
                    + " fingerprint a text" + (fingerprint == null ? ": it is null" : ""));
        }
        Map<String, Object> what = new HashMap<>(more);
        String id = Server.newId();
        what.putAll(Map.of("id", id, "group", group, "key", key, "fingerprint", fingerprint));
        Server.Told told = server.repeat("call/begin", what, Answer.NONE, Once.BEGIN_MS,
                Server.after(Once.ANSWER_MS + (more.get("wait_ms") instanceof Number wait
                        ? Math.min(Math.max(wait.longValue(), 0), Server.LONG) : 0)));
        if (told == null) {
            server.abandon(id);
        }
        if (told == null || !told.does("run")) {
            return result(told);
        }
        what.keySet().retainAll(List.of("lease_ms", "keep_ms"));
        what.put("token", told.text("token"));
        byte[] result;
        try {
            byte[] given = work.call();
            result = given == null ? Answer.NONE : given; // as each repeat gets it
        } catch (NotApplied nothing) {
            tell("abandon", what, Answer.NONE, until(what));
            throw nothing;
        } catch (Throwable wrong) {
            tell("broken", what, Answer.NONE, until(what));
            throw wrong;
        }
        what.put("kind", "success");
        long until = until(what);
        told = tell("call/end", what, result, until);
        if (told != null && told.code() == 422) { // it cannot be carried
            tell("broken", what, Answer.NONE, until);
        }
        if (told == null || told.code() != 200) {
            throw new NoResult("indeterminate", null);
        }
        return told.does("none") ? result : result(told);
    }

    /** As long as the lease, from now. */
    private static long until(Map<String, Object> what) {
        return Server.after(what.get("lease_ms") instanceof Number lease
                ? Math.min(lease.longValue(), Server.LONG) : LEASE_MS);
    }

    private Server.Told tell(String path, Map<String, Object> what, byte[] body, long until) {
        Server.Told told = server.repeat(path, what, body, Server.LONG, until);
        if (told != null && told.code() != 200) {
            server.log.log(Level.ERROR, "once: " + path + ": the server has refused it: "
                    + told.text("text"));
        }
        return told;
    }

    private static byte[] result(Server.Told told) throws NoResult {
        if (told != null && told.code() == 422) {
            throw new IllegalArgumentException(told.text("text"));
        } else if (told == null || told.code() != 200) {
            throw new NoResult("unavailable", null);
        } else if (!told.does("replay")) {
            throw new NoResult(told.text("do"), told);
        } else if (!"success".equals(told.text("kind"))) {
            throw new NoResult("failure", told);
        }
        return told.body();
    }
}
