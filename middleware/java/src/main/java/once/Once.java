// SPDX-License-Identifier: Apache-2.0
package once;

import jakarta.servlet.DispatcherType;
import jakarta.servlet.Filter;
import jakarta.servlet.FilterChain;
import jakarta.servlet.FilterConfig;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletInputStream;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.lang.System.Logger.Level;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;

/**
 * Keeps the contract of Idempotency-Key for Java services, by `once serve`.
 *
 * <pre>
 * Filter filter = new Once(new Once.Options().scope(HttpServletRequest::getRemoteUser));
 * </pre>
 *
 * A request goes to the server before its servlet runs, and the servlet's answer before the client
 * gets it. The server decides; this package carries. It refuses to send a byte of an answer before
 * the server has said that it is durable.
 */
public final class Once implements Filter {
    static final long BEGIN_MS = 1000; // how long a begin is repeated
    static final List<String> INTERNAL = List.of("Idempotency-Attempt", "Idempotency-Outcome",
            "Idempotency-Probe", "Idempotency-Record", "Idempotency-Recorded-Status",
            "Idempotency-Status", "Idempotent-Replayed");
    static final long ANSWER_MS = 5000; // of each answer of the server, beside what it waits
    static final String BROKEN = "once.broken"; // an attribute
    private static final String HELD = "once.Once"; // the attribute of a request that is guarded

    private final Server server;
    private final Map<String, Function<HttpServletRequest, String>> computed;
    private final Object route;
    private final boolean bypass;
    private volatile Server.Told bounds; // null: not known yet
    private final String asked = HELD + "@" + Integer.toHexString(System.identityHashCode(this));

    /** Where the server is, and what a request means. The members are named as the directives. */
    public static final class Options {
        private final Map<String, Function<HttpServletRequest, String>> computed =
                new LinkedHashMap<>();
        private Object route = Map.of();
        String serve = System.getenv().getOrDefault("ONCE_SERVE", "unix:/run/once/serve.sock");
        String tokenFile = System.getenv("ONCE_SERVE_TOKEN_FILE");
        private boolean bypass;
        System.Logger log = System.getLogger("once");

        /** Who has authenticated, or null: 401. Callers of one scope can get each other's
         *  answers. */
        public Options scope(Function<HttpServletRequest, String> of) {
            return compute("scope", of);
        }

        /** In place of the header; null: it counts. */
        public Options key(Function<HttpServletRequest, String> of) {
            return compute("key", of);
        }

        /** In place of what is compared. */
        public Options fingerprint(Function<HttpServletRequest, String> of) {
            return compute("fingerprint", of);
        }

        /** What operators see. */
        public Options label(Function<HttpServletRequest, String> of) {
            return compute("label", of);
        }

        private Options compute(String name, Function<HttpServletRequest, String> of) {
            computed.put(name, of);
            return this;
        }

        /** {"scope": "off"} in place of a function: all callers are one. */
        public Options route(Map<String, ?> members) {
            route = members;
            return this;
        }

        /** A route that the server knows by this name. */
        public Options route(String name) {
            route = name;
            return this;
        }

        public Options serve(String where) {
            serve = where;
            return this;
        }

        public Options tokenFile(String path) {
            tokenFile = path;
            return this;
        }

        /** Requests pass while the server is away; only with lost takeover and store_failure
         *  bypass. */
        public Options bypass(boolean on) {
            bypass = on;
            return this;
        }

        public Options log(System.Logger to) {
            log = to;
            return this;
        }
    }

    public Once(Options o) {
        Map<?, ?> given = o.route instanceof Map<?, ?> members ? members : Map.of();
        if (o.bypass && !("takeover".equals(given.get("lost"))
                && "bypass".equals(given.get("store_failure")))) {
            throw new IllegalArgumentException(
                    "once: bypass needs the route's members \"lost\": \"takeover\" and"
                    + " \"store_failure\": \"bypass\"");
        }
        if (!o.computed.containsKey("scope") && o.route instanceof Map
                && !"off".equals(given.get("scope"))) {
            throw new IllegalArgumentException("once: there is no scope: give a function"
                    + " of the request that says who has authenticated, or the route's member"
                    + " \"scope\": \"off\"");
        }
        server = new Server(o);
        computed = Map.copyOf(o.computed);
        route = o.route instanceof Map<?, ?> members ? Map.copyOf(members) : o.route;
        bypass = o.bypass;
    }

    /** A route that cannot be is an error when the service starts, if the server is there. */
    @Override public void init(FilterConfig config) throws ServletException {
        Server.Told told = bounds(0);
        if (told != null && told.code() == 422) {
            throw new ServletException("once: the server refuses this filter's route "
                    + Json.write(route) + ": " + told.text("text"));
        }
    }

    @Override public void destroy() { server.closeIdle(); }

    /** An exception that was answered for inside the guard, where no attribute of the request says
     *  so: what the servlet did is unknown, whatever it answers. */
    public static void broken(ServletRequest q, Throwable wrong) {
        q.setAttribute(BROKEN, wrong != null ? wrong
                : new IllegalStateException("Once.broken() was called"));
    }

    @Override public void doFilter(ServletRequest q, ServletResponse r, FilterChain chain)
            throws IOException, ServletException {
        DispatcherType type = q.getDispatcherType();
        Object held = q.getAttribute(HELD);
        if (held instanceof Held it && type == DispatcherType.ASYNC) {
            run(it, q, r, chain);
        } else if (held == null && q.getAttribute(asked) == null
                && (type == DispatcherType.REQUEST || type == DispatcherType.FORWARD
                        || type == DispatcherType.ASYNC) // of a filter before this one
                && q instanceof HttpServletRequest request
                && r instanceof HttpServletResponse response) {
            q.setAttribute(asked, true); // a request that is forwarded comes again
            guard(request, response, chain);
        } else {
            chain.doFilter(q, r);
        }
    }

    /** What the server knows of the route. Null: it is away. */
    private Server.Told bounds(long ms) {
        Server.Told told = bounds;
        if (told == null) {
            told = server.repeat("route", new HashMap<>(Map.of("route", route)), Answer.NONE, ms,
                    Server.after(ANSWER_MS));
            told = told != null && told.code() == 200 && told.number("max_request") == 0 ? null
                    : told;
            bounds = told != null && told.code() == 200 ? told : null;
        }
        return told;
    }

    /** Nothing is claimed, and the servlet does not run. */
    private void refuse(HttpServletRequest q, HttpServletResponse r, String why)
            throws IOException {
        server.log.log(Level.ERROR, "once: 500 for " + q.getMethod() + " " + q.getRequestURI()
                + ", and nothing was run: " + why);
        Answer.WRONG.send(r);
    }

    private void guard(HttpServletRequest q, HttpServletResponse r, FilterChain chain)
            throws IOException, ServletException {
        Server.Told bounds = bounds(BEGIN_MS);
        if (bounds == null && bypass) {
            chain.doFilter(new Given(q, null, null, r), r);
        } else if (bounds == null || bounds.code() == 401) {
            away(r, bounds);
        } else if (bounds.code() != 200) {
            refuse(q, r, "the route: " + bounds.text("text"));
        } else {
            guard(q, r, chain, bounds);
        }
    }

    private void away(HttpServletResponse r, Server.Told told) throws IOException {
        if (told != null) {
            server.log.log(Level.ERROR, "once: the server refuses the token: " + told.text("text")
                    + " Give the file of `once serve --token-file` as tokenFile.");
        }
        Answer.UNAVAILABLE.send(r);
    }

    private void guard(HttpServletRequest q, HttpServletResponse r, FilterChain chain,
            Server.Told bounds) throws IOException, ServletException {
        int most = (int) bounds.number("max_request");
        ServletInputStream in = null;
        byte[] body = Answer.NONE;
        String taken;
        try {
            in = q.getInputStream();
            boolean isOver = q.getHeader("Transfer-Encoding") != null && in.isFinished();
            body = in.readNBytes(most + 1); // one more than is allowed is a 413
            taken = taken(q, body.length, most, isOver);
        } catch (IllegalStateException other) { // by getReader(), or without blocking
            taken = "(" + other.getMessage() + ")";
        }
        ServletInputStream rest = body.length > most ? in : null;
        String id = Server.newId();
        Given again = given(q, body, rest, r, taken);
        Map<String, Object> head = head(id, q);
        String wrong = compute(head, again, taken);
        if (wrong != null) {
            refuse(q, r, wrong);
            return;
        }
        Server.Told told = server.repeat("begin", head, body, BEGIN_MS,
                Server.after(bounds.number("wait_ms") + ANSWER_MS));
        if (told == null || told.does("run") && rest != null) {
            this.bounds = null; // another server may have other routes
            server.abandon(id);
        }
        if (told == null && bypass || told != null && told.does("pass")) {
            if (told != null) {
                told.lines().forEach(line -> r.addHeader((String) ((List<?>) line).get(0),
                        (String) ((List<?>) line).get(1)));
            }
            chain.doFilter(given(q, body, rest, r, taken), r);
        } else if (told != null && told.does("run") && rest == null) {
            Held held = new Held(new Exchange(server, route, told), q, r);
            q.setAttribute(HELD, held);
            run(held, given(q, body, null, held, taken), held, chain);
        } else if (told != null && told.does("send")) {
            Answer.of(told).send(r);
        } else if (told == null || told.code() == 401) {
            away(r, told);
        } else { // a wrong program; or its route takes more since a restart
            refuse(q, r, rest != null ? "the body is longer than this filter takes"
                    : "the server refuses the begin: " + told.text("text"));
        }
    }

    /** With the body that was read here; or, if another has read all of it, as that left it. */
    private static Given given(HttpServletRequest q, byte[] body, ServletInputStream rest,
            HttpServletResponse r, String taken) {
        return new Given(q, taken != null && body.length == 0 ? null : body, rest, r);
    }

    /** Null: the body was not read before, as far as the container can say. */
    private static String taken(HttpServletRequest q, int got, int most, boolean isOver) {
        long length = q.getContentLengthLong();
        long read = length >= 0 ? Math.min(length, most + 1L)
                : Math.min(Container.bytesRead(q), most + 1L);
        return got < read || isOver
                ? "(" + got + (length >= 0 ? " of " + length : "") + " bytes were left)" : null;
    }

    private Map<String, Object> head(String id, HttpServletRequest q) {
        List<List<String>> lines = new ArrayList<>();
        Set<String> seen = new HashSet<>();
        for (String name : Collections.list(q.getHeaderNames())) {
            if (seen.add(name.toLowerCase(Locale.ROOT))) {
                q.getHeaders(name).asIterator().forEachRemaining(v -> lines.add(List.of(name, v)));
            }
        }
        if (!seen.contains("host")) { // HTTP/2 has it as :authority, and containers as a name
            boolean isUsual = q.getServerPort() == ("https".equals(q.getScheme()) ? 443 : 80);
            lines.add(List.of("Host", q.getServerName()
                    + (isUsual ? "" : ":" + q.getServerPort())));
        }
        String query = q.getQueryString();
        return new HashMap<>(Map.of("id", id, "method", q.getMethod(), "target",
                q.getRequestURI() + (query == null ? "" : "?" + query), "headers", lines,
                "route", route));
    }

    /** What the program computes goes to the head. Not null: what is wrong. */
    private String compute(Map<String, Object> head, HttpServletRequest again, String taken) {
        for (Map.Entry<String, Function<HttpServletRequest, String>> each : computed.entrySet()) {
            String value = each.getValue().apply(again);
            if (value != null && value.isBlank()) {
                return each.getKey() + " is \"" + value + "\": it must be a text that is not"
                        + " blank, or null" + (each.getKey().equals("scope")
                                ? " for a caller who has not authenticated (401)" : "");
            } else if (value != null) {
                head.put(each.getKey(), value);
            }
        }
        // Without its body a request would be the same as others of its key.
        return taken == null || head.containsKey("fingerprint") ? null
                : "the body was read before " + taken + ". Map this filter before the one that"
                        + " calls getInputStream(), getReader(), getParameter() or getParts(), or"
                        + " compute a fingerprint";
    }

    /** One dispatch of a servlet that is guarded: the first, or one that it asked for later. */
    private static void run(Held held, ServletRequest q, ServletResponse r, FilterChain chain)
            throws IOException, ServletException {
        held.later.started = false;
        try {
            chain.doFilter(q, r);
        } catch (Throwable wrong) {
            if (!held.broke(wrong, Exchange.isTimeout(wrong) ? 504 : 502)) {
                throw wrong;
            }
            held.later.finish();
            return;
        }
        if (!held.later.started && !q.isAsyncStarted()) {
            held.finish();
        }
    }
}
