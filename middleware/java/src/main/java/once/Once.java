// SPDX-License-Identifier: Apache-2.0
package once;

import jakarta.servlet.DispatcherType;
import jakarta.servlet.Filter;
import jakarta.servlet.FilterChain;
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
    private static final int BODY_MAX = 1 << 20; // of a request that is guarded
    private static final String HELD = "once.Once"; // the attribute of a request that is guarded

    private final Server server;
    private final Map<String, Function<HttpServletRequest, String>> computed;
    private final Object route;
    private final boolean bypass;
    private volatile int most; // 0: not known yet
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

        /** Who has authenticated, or "": 401. Callers of one scope can get each other's answers. */
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
                    "bypass needs lost=takeover and store_failure=bypass");
        }
        if (!o.computed.containsKey("scope") && o.route instanceof Map
                && !"off".equals(given.get("scope"))) {
            throw new IllegalArgumentException("scope: who is the caller? Or \"scope\": \"off\"");
        }
        server = new Server(o);
        computed = Map.copyOf(o.computed);
        route = o.route instanceof Map<?, ?> members ? Map.copyOf(members) : o.route;
        bypass = o.bypass;
    }

    @Override public void destroy() { server.closeIdle(); }

    @Override public void doFilter(ServletRequest q, ServletResponse r, FilterChain chain)
            throws IOException, ServletException {
        DispatcherType type = q.getDispatcherType();
        Object held = q.getAttribute(HELD);
        if (held instanceof Held it && type == DispatcherType.ASYNC) {
            run(it, q, r, chain);
        } else if (held == null && q.getAttribute(asked) == null
                && (type == DispatcherType.REQUEST || type == DispatcherType.FORWARD)
                && q instanceof HttpServletRequest request
                && r instanceof HttpServletResponse response) {
            q.setAttribute(asked, true); // a request that is forwarded comes again
            guard(request, response, chain);
        } else {
            chain.doFilter(q, r);
        }
    }

    /** How much of a body is read: the server knows its routes. */
    private int limit() {
        if (most == 0) {
            Server.Told told = server.repeat("route", new HashMap<>(Map.of("route", route)),
                    Answer.NONE, 0);
            if (told == null || told.code() != 200) {
                return BODY_MAX;
            }
            most = (int) told.number("max_request");
        }
        return most;
    }

    private void guard(HttpServletRequest q, HttpServletResponse r, FilterChain chain)
            throws IOException, ServletException {
        int most = limit();
        ServletInputStream in = q.getInputStream();
        boolean taken = q.getHeader("Transfer-Encoding") != null && in.isFinished();
        byte[] body = in.readNBytes(most + 1); // one more than is allowed is a 413
        taken |= body.length < Math.min(q.getContentLengthLong(), most);
        if (taken && !computed.containsKey("fingerprint")) {
            // Without its body a request would be the same as others of its key.
            server.log.log(Level.ERROR, "once: the body was read before");
            Answer.WRONG.send(r);
            return;
        }
        ServletInputStream rest = body.length > most ? in : null;
        String id = Server.newId();
        Server.Told told = server.repeat("begin", head(id, q, new Given(q, body, rest, r)), body,
                BEGIN_MS);
        if (told == null || told.does("run") && rest != null) {
            server.abandon(id);
        }
        if (told == null && bypass || told != null && told.does("pass")) {
            if (told != null) {
                told.lines().forEach(line -> r.addHeader((String) ((List<?>) line).get(0),
                        (String) ((List<?>) line).get(1)));
            }
            chain.doFilter(new Given(q, body, rest, r), r);
        } else if (told != null && told.does("run") && rest == null) {
            Held held = new Held(new Exchange(server, route, told), r);
            q.setAttribute(HELD, held);
            run(held, new Given(q, body, null, held), held, chain);
        } else if (told != null && told.does("send")) {
            Answer.of(told).send(r);
        } else if (told == null || told.code() == 401) {
            Answer.UNAVAILABLE.send(r);
        } else { // a wrong program; or its route takes more since a restart
            server.log.log(Level.ERROR, "once: begin: " + (rest != null
                    ? "the body is longer than this filter takes" : told.text("text")));
            Answer.WRONG.send(r);
        }
    }

    private Map<String, Object> head(String id, HttpServletRequest q, HttpServletRequest again) {
        List<List<String>> lines = new ArrayList<>();
        Set<String> seen = new HashSet<>();
        for (String name : Collections.list(q.getHeaderNames())) {
            if (seen.add(name.toLowerCase(Locale.ROOT))) {
                q.getHeaders(name).asIterator().forEachRemaining(v -> lines.add(List.of(name, v)));
            }
        }
        String query = q.getQueryString();
        Map<String, Object> what = new HashMap<>(Map.of("id", id, "method", q.getMethod(), "target",
                q.getRequestURI() + (query == null ? "" : "?" + query), "headers", lines,
                "route", route));
        computed.forEach((name, of) -> {
            String value = of.apply(again);
            if (value != null) {
                what.put(name, value);
            }
        });
        return what;
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
            if (held.later.started && !held.later.ended) {
                held.later.ended = true;
                held.later.real.complete();
            }
            return;
        }
        if (!held.later.started && !q.isAsyncStarted()) {
            held.finish();
        }
    }
}
