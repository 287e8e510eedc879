// SPDX-License-Identifier: Apache-2.0
package once;

import java.lang.System.Logger.Level;
import java.net.SocketTimeoutException;
import java.net.http.HttpTimeoutException;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeoutException;

/** One request whose servlet runs: what became of it is told to the server. */
record Exchange(Server server, Object route, Server.Told run) {
    void log(Level level, String text, Throwable wrong) {
        server.log.log(level, "once: " + text, wrong);
    }

    /** As long as the lease, from the call. */
    private long until() { return Server.after(run.number("lease_ms")); }

    private Server.Told tell(String path, Map<String, Object> what, byte[] body, long until) {
        what.put("token", run.text("token"));
        what.put("route", route);
        Server.Told told = server.repeat(path, what, body, Server.LONG, until);
        if (told != null && told.code() != 200) {
            log(Level.ERROR, path + ": the server has refused it: " + told.text("text"), null);
        }
        return told;
    }

    /** What the client gets. Body null: a stream, which is recorded as not kept. */
    Answer end(int status, List<?> lines, byte[] body) {
        Map<String, Object> what = new HashMap<>(Map.of("status", status, "headers", lines));
        if (body == null) {
            what.put("stream", true);
        }
        long until = until();
        Server.Told told = tell("end", what, body == null ? Answer.NONE : body, until);
        if (told != null && told.code() != 200) { // it cannot be carried
            return broken(502, until);
        }
        if (told != null && told.does("own")) {
            return new Answer((int) told.number("status"), told.lines(),
                    body == null ? Answer.NONE : body, true);
        }
        return told != null && told.does("send") ? Answer.of(told) : Answer.UNKNOWN;
    }

    /** The servlet ended without an answer: what it did is not known. Null: nobody guards it
     *  (a dry run), so it breaks as it would without Once. */
    Answer broken(int status) { return broken(status, until()); }

    private Answer broken(int status, long until) {
        Server.Told told = tell("broken", new HashMap<>(Map.of("status", status)), Answer.NONE,
                until);
        if (told == null || told.code() != 200) {
            return Answer.UNKNOWN;
        }
        return told.does("send") ? Answer.of(told) : null;
    }

    static boolean isTimeout(Throwable wrong) {
        Throwable t = wrong;
        for (int i = 0; t != null && i < 32; i++, t = t.getCause()) {
            if (t instanceof SocketTimeoutException || t instanceof TimeoutException
                    || t instanceof HttpTimeoutException) {
                return true;
            }
        }
        return false;
    }
}
