// SPDX-License-Identifier: Apache-2.0

import jakarta.servlet.AsyncContext;
import jakarta.servlet.AsyncEvent;
import jakarta.servlet.AsyncListener;
import jakarta.servlet.DispatcherType;
import jakarta.servlet.Filter;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ReadListener;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletInputStream;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import jakarta.servlet.http.HttpServletResponse;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import once.Once;
import org.apache.catalina.connector.Connector;
import org.apache.catalina.core.StandardContext;
import org.apache.catalina.startup.Tomcat;
import org.apache.tomcat.util.descriptor.web.FilterDef;
import org.apache.tomcat.util.descriptor.web.FilterMap;
import org.apache.tomcat.util.json.JSONParser;
import org.apache.tomcat.util.json.ParseException;

/**
 * A servlet on Tomcat, with filters outside and inside of Once as Spring has them, for the drawn
 * cases of test/frameworks. The header Do says what each part does.
 */
public final class ServletApp {
    private static final String SPRING =
            "org.springframework.web.servlet.DispatcherServlet.EXCEPTION";
    private static FileChannel events;

    // ---- What a request asks for ---------------------------------------------------------------

    private record Wish(Map<?, ?> members) {
        static Wish of(ServletRequest q) {
            String text = ((HttpServletRequest) q).getHeader("Do");
            try {
                return new Wish(text == null ? Map.of() : new JSONParser(text).parseObject());
            } catch (ParseException wrong) {
                throw new IllegalArgumentException("Do: " + text, wrong);
            }
        }

        boolean has(String name) { return Boolean.TRUE.equals(members.get(name)); }

        String text(String name) { return String.valueOf(members.get(name)); }

        long number(String name) {
            return members.get(name) instanceof Number n ? n.longValue() : 0;
        }

        boolean wants(String what) {
            return members.get("extra") instanceof List<?> list && list.contains(what);
        }
    }

    // ---- The log -------------------------------------------------------------------------------

    /** The key as an RFC 8941 String or as it is. */
    private static String keyOf(HttpServletRequest q) {
        String key = String.valueOf(q.getHeader("Idempotency-Key"));
        return key.startsWith("\"") ? key.substring(1, key.length() - 1) : key;
    }

    private static String json(String... pairs) {
        StringBuilder out = new StringBuilder("{");
        for (int i = 0; i < pairs.length; i += 2) {
            out.append(i > 0 ? "," : "").append('"').append(pairs[i]).append("\":\"")
                    .append(pairs[i + 1].replace("\\", "\\\\").replace("\"", "\\\"")).append('"');
        }
        return out.append('}').toString();
    }

    private static void write(String line) {
        try {
            events.write(ByteBuffer.wrap((line + "\n").getBytes(StandardCharsets.UTF_8)));
        } catch (IOException wrong) {
            throw new IllegalStateException(wrong);
        }
    }

    private static String hash(byte[] body) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(body));
        } catch (java.security.NoSuchAlgorithmException never) {
            throw new IllegalStateException(never);
        }
    }

    // ---- The filter outside: a logger or a check that reads the body -------------------------

    private static HttpServletRequest restored(HttpServletRequest q) throws IOException {
        ByteArrayInputStream all = new ByteArrayInputStream(q.getInputStream().readAllBytes());
        return new HttpServletRequestWrapper(q) {
            @Override public ServletInputStream getInputStream() {
                return new ServletInputStream() {
                    @Override public int read() { return all.read(); }

                    @Override public boolean isFinished() { return all.available() == 0; }

                    @Override public boolean isReady() { return true; }

                    @Override public void setReadListener(ReadListener l) { }
                };
            }
        };
    }

    private static HttpServletRequest outer(HttpServletRequest q, String how) throws IOException,
            ServletException {
        String type = String.valueOf(q.getContentType());
        if (how.equals("peek")) {
            q.getInputStream().readNBytes(3);
        } else if (how.equals("restore")) {
            return restored(q);
        } else if (how.equals("read") && type.startsWith("application/x-www-form-urlencoded")) {
            q.getParameterMap();
        } else if (how.equals("read") && type.startsWith("multipart/form-data")) {
            q.getParts();
        } else if (how.equals("read") && type.startsWith("text/")) {
            q.getReader().lines().count();
        } else if (how.equals("read")) {
            q.getInputStream().readAllBytes();
        }
        return q;
    }

    private static void outside(ServletRequest request, ServletResponse r, FilterChain chain)
            throws IOException, ServletException {
        Wish wish = Wish.of(request);
        HttpServletRequest q = (HttpServletRequest) request;
        if (q.getDispatcherType() == DispatcherType.REQUEST) {
            q = outer(q, wish.text("outer"));
        }
        try {
            chain.doFilter(q, r);
        } catch (IOException | ServletException | RuntimeException wrong) {
            if (!wish.has("catch") || r.isCommitted()) {
                throw wrong;
            }
            r.reset();
            ((HttpServletResponse) r).setStatus(500);
            r.getOutputStream().print("the outer filter answers");
        }
    }

    // ---- The filter inside: an exception resolver ----------------------------------------------

    private static void inside(ServletRequest q, ServletResponse r, FilterChain chain)
            throws IOException, ServletException {
        try {
            chain.doFilter(q, r);
        } catch (IOException | ServletException | RuntimeException wrong) {
            if (!Wish.of(q).has("inner_catch") || r.isCommitted()) {
                throw wrong;
            }
            q.setAttribute(SPRING, wrong);
            r.resetBuffer();
            ((HttpServletResponse) r).setStatus(500);
            r.getOutputStream().print("the resolver answers");
        }
    }

    // ---- The servlet ---------------------------------------------------------------------------

    /** One run of the handler. */
    private static final class Run {
        final HttpServletResponse r;
        private final Wish wish;
        private final String key;
        private final String id = UUID.randomUUID().toString();
        private final String n = UUID.randomUUID().toString();

        Run(HttpServletRequest q, HttpServletResponse r) {
            this.r = r;
            wish = Wish.of(q);
            key = keyOf(q);
        }

        void say(String event, String... more) {
            String[] pairs = Arrays.copyOf(new String[] {"event", event, "key", key, "run", id},
                    6 + more.length);
            System.arraycopy(more, 0, pairs, 6, more.length);
            write(json(pairs));
        }

        private void finished(int status, byte[] body) {
            write("{\"event\":\"finished\",\"key\":" + quoted(key) + ",\"run\":" + quoted(id)
                    + ",\"status\":" + status + ",\"body\":\"" + hash(body) + "\"}");
        }

        private static String quoted(String text) {
            return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
        }

        void raise(String what) {
            say("raised");
            throw new IllegalStateException(what);
        }

        void effect() {
            if (wish.text("before").equals("raise")) {
                raise("before the effect");
            }
            if (!Boolean.FALSE.equals(wish.members().get("effect"))) {
                say("effect", "n", n);
            }
        }

        void sleep() {
            try {
                Thread.sleep(wish.number("sleep_ms"));
            } catch (InterruptedException wrong) {
                raise("interrupted");
            }
        }

        private byte[] body() {
            return json("key", key, "n", n).getBytes(StandardCharsets.UTF_8);
        }

        /** All of it before the answer is told, so that what fails is told to the log. */
        void answer() throws IOException {
            if (wish.text("after").equals("raise")) {
                raise("after the effect");
            } else if (wish.text("after").equals("cancel")) { // as an executor that is shut down
                Thread.currentThread().interrupt();
                sleep();
            }
            try {
                if (wish.wants("trailers")) {
                    r.setTrailerFields(() -> Map.of("X-Trailer", "1"));
                }
                if (wish.wants("flush")) {
                    r.flushBuffer();
                }
                send(wish.text("answer"));
            } catch (IOException wrong) {
                say(r.isCommitted() ? "cut" : "disconnect");
                throw wrong;
            }
        }

        private void send(String how) throws IOException {
            byte[] body = how.equals("large") ? "x".repeat(300 << 10).getBytes() : body();
            int status = how.equals("empty") ? 204 : how.equals("error") ? 422 : 201;
            if (how.equals("error")) {
                finished(status, new byte[0]);
                r.sendError(status, "refused");
                return;
            } else if (how.equals("empty")) {
                finished(status, new byte[0]);
                r.setStatus(status);
                return;
            }
            r.setStatus(status);
            r.setContentType("application/json");
            OutputStream out = r.getOutputStream();
            if (how.equals("stream")) {
                stream(out, body);
            } else if (how.equals("file")) {
                Path file = Files.createTempFile("pay", ".json");
                Files.write(file, body);
                r.setContentLengthLong(body.length);
                Files.copy(file, out);
                Files.delete(file);
                finished(status, body);
            } else if (how.equals("short")) {
                r.setContentLength(body.length + 10);
                out.write(body);
                if (!wish.wants("flush")) { // a stream is told before it is cut
                    finished(status, body);
                }
            } else {
                out.write(body);
                finished(status, body);
            }
        }

        private void stream(OutputStream out, byte[] body) throws IOException {
            int third = body.length / 3;
            for (int i = 0; i < 3; i++) {
                if (i > 0) {
                    out.flush();
                    try {
                        Thread.sleep(20);
                    } catch (InterruptedException wrong) {
                        raise("interrupted");
                    }
                }
                out.write(body, i * third, i < 2 ? third : body.length - 2 * third);
            }
            finished(201, body);
        }

        boolean isLater() {
            return wish.number("sleep_ms") > 0 || wish.text("answer").equals("stream");
        }

        boolean isTimeout() { return wish.text("after").equals("timeout"); }
    }

    private static AsyncListener listener(Run run) {
        return new AsyncListener() {
            @Override public void onTimeout(AsyncEvent e) { run.say("raised"); }

            @Override public void onError(AsyncEvent e) {
                run.say(e.getThrowable() instanceof IOException ? "disconnect" : "error");
            }

            @Override public void onStartAsync(AsyncEvent e) { }

            @Override public void onComplete(AsyncEvent e) { }
        };
    }

    private static final class Pay extends HttpServlet {
        private static final long serialVersionUID = 1;

        @Override protected void service(HttpServletRequest q, HttpServletResponse r)
                throws IOException {
            Run run = (Run) q.getAttribute("run");
            if (run != null) { // what went wrong on the other thread
                throw (RuntimeException) q.getAttribute("wrong");
            }
            run = new Run(q, r);
            run.effect();
            if (run.isTimeout()) {
                tooLate(q, run);
            } else if (run.isLater()) {
                later(q, run);
            } else {
                run.answer();
            }
        }

        private static void later(HttpServletRequest q, Run run) {
            AsyncContext later = q.startAsync();
            later.setTimeout(0);
            later.addListener(listener(run));
            new Thread(() -> {
                try {
                    run.sleep();
                    run.answer();
                    later.complete();
                } catch (IOException gone) {
                    later.complete();
                } catch (RuntimeException wrong) { // as Spring does: the dispatch throws it
                    q.setAttribute("run", run);
                    q.setAttribute("wrong", wrong);
                    later.dispatch();
                }
            }).start();
        }

        /** Its lines come while the time-out is answered, and after it. */
        private static void tooLate(HttpServletRequest q, Run run) {
            AsyncContext later = q.startAsync();
            later.setTimeout(50);
            later.addListener(listener(run));
            new Thread(() -> {
                long end = System.nanoTime() + 2_500_000_000L;
                while (System.nanoTime() < end) {
                    run.r.setHeader("X-Late", "1");
                    run.r.setContentLength(5);
                    run.r.setContentType("text/late");
                    Thread.yield();
                }
                try {
                    run.r.getOutputStream().print("late");
                    later.complete();
                } catch (IOException | IllegalStateException right) {
                    return;
                }
            }).start();
        }
    }

    private static final class Plain extends HttpServlet {
        private static final long serialVersionUID = 1;

        @Override protected void doGet(HttpServletRequest q, HttpServletResponse r)
                throws IOException {
            r.getOutputStream().print("plain");
        }
    }

    // ---- The service ---------------------------------------------------------------------------

    private static void add(StandardContext context, String name, Filter filter) {
        FilterDef def = new FilterDef();
        def.setFilterName(name);
        def.setFilter(filter);
        def.setAsyncSupported("true");
        context.addFilterDef(def);
        FilterMap map = new FilterMap();
        map.setFilterName(name);
        map.addURLPattern("/*");
        map.setDispatcher(DispatcherType.REQUEST.name());
        map.setDispatcher(DispatcherType.ASYNC.name());
        context.addFilterMap(map);
    }

    public static void main(String[] args) throws Exception {
        events = FileChannel.open(Path.of(System.getenv("APP_LOG")), StandardOpenOption.CREATE,
                StandardOpenOption.APPEND);
        Tomcat tomcat = new Tomcat();
        tomcat.setBaseDir(args[0]);
        Connector c = new Connector();
        c.setProperty("address", "127.0.0.1");
        c.setPort(Integer.parseInt(System.getenv("APP_PORT")));
        tomcat.setConnector(c);
        StandardContext context = (StandardContext) tomcat.addContext("", args[0]);
        context.setAllowCasualMultipartParsing(true);
        Tomcat.addServlet(context, "pay", new Pay()).setAsyncSupported(true);
        Tomcat.addServlet(context, "plain", new Plain()).setAsyncSupported(true);
        context.addServletMapping("/pay", "pay");
        context.addServletMapping("/plain", "plain");
        add(context, "outside", ServletApp::outside);
        add(context, "once", new Once(new Once.Options()
                .scope(q -> q.getHeader("X-User"))
                .fingerprint(q -> Wish.of(q).has("fingerprint") ? q.getHeader("X-Print") : null)
                .route(Map.of("in_flight", "wait=2s", "run", "10s", "max_request", "256k",
                        "max_response", "256k"))));
        add(context, "inside", ServletApp::inside);
        tomcat.start();
        System.out.println("ready");
        tomcat.getServer().await();
    }
}
