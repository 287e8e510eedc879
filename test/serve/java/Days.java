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
import jakarta.servlet.ServletOutputStream;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.ServletResponseWrapper;
import jakarta.servlet.WriteListener;
import jakarta.servlet.http.Cookie;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import jakarta.servlet.http.HttpServletResponse;
import jakarta.servlet.http.Part;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintWriter;
import java.net.SocketTimeoutException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import once.Calls;
import once.Once;
import org.apache.catalina.connector.Connector;
import org.apache.catalina.core.AsyncContextImpl;
import org.apache.catalina.core.StandardContext;
import org.apache.catalina.startup.Tomcat;
import org.apache.coyote.http2.Http2Protocol;
import org.apache.tomcat.util.descriptor.web.FilterDef;
import org.apache.tomcat.util.descriptor.web.FilterMap;

/**
 * What servlets may do that no scenario of test/gateway does; test_java.py asks. The path says
 * how a request is guarded and what its servlet does: /g/stack-overflow.
 *
 * <pre>Days SOCKET FOLDER [TOKEN-FILE]</pre>
 *
 * FOLDER/port has the port when it listens.
 */
public final class Days {
    private interface Servlet {
        void serve(HttpServletRequest q, HttpServletResponse r) throws Exception;
    }

    private static final Map<String, Servlet> SERVLETS = new HashMap<>();
    private static final Map<String, AtomicInteger> RUNS = new ConcurrentHashMap<>();
    private static Calls calls;
    private static String serve;
    private static String token;

    private static void text(HttpServletResponse r, int status, String text) throws IOException {
        r.setStatus(status);
        r.setContentType("text/plain");
        r.getOutputStream().write(text.getBytes(StandardCharsets.ISO_8859_1));
    }

    private static int overflow(int n) { return overflow(n + 1) + 1; }

    private static void sleep(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException wrong) {
            throw new IllegalStateException(wrong);
        }
    }

    // ---- Bodies ------------------------------------------------------------------------------

    private static String parameters(HttpServletRequest q) {
        StringBuilder out = new StringBuilder();
        new TreeMap<>(q.getParameterMap()).forEach(
                (name, values) -> out.append(name + "=" + Arrays.toString(values) + "\n"));
        for (String name : Collections.list(q.getParameterNames())) {
            if (!q.getParameter(name).equals(q.getParameterValues(name)[0])) {
                out.append("other: " + name);
            }
        }
        StringBuilder ascii = new StringBuilder();
        out.chars().forEach(c -> ascii.append(c < 127 ? String.valueOf((char) c)
                : String.format("\\u%04x", c)));
        return ascii.toString();
    }

    private static String parts(HttpServletRequest q) throws Exception {
        StringBuilder out = new StringBuilder();
        for (Part p : q.getParts()) {
            out.append(p.getName() + " " + p.getSubmittedFileName() + " " + p.getContentType() + " "
                    + p.getSize() + " " + p.getHeader("Content-Disposition") + " "
                    + new String(p.getInputStream().readAllBytes(), StandardCharsets.ISO_8859_1)
                    + "\n");
        }
        return out + parameters(q);
    }

    /** Without blocking, as far as the container lets it. */
    private static void readLater(HttpServletRequest q, HttpServletResponse r) throws IOException {
        AsyncContext later = q.startAsync();
        ServletInputStream in = q.getInputStream();
        ByteArrayOutputStream got = new ByteArrayOutputStream();
        in.setReadListener(new ReadListener() {
            @Override public void onDataAvailable() throws IOException {
                byte[] part = new byte[1000];
                while (in.isReady() && !in.isFinished()) {
                    int n = in.read(part);
                    got.write(part, 0, Math.max(n, 0));
                }
            }

            @Override public void onAllDataRead() throws IOException {
                ServletOutputStream out = later.getResponse().getOutputStream();
                out.setWriteListener(new WriteListener() {
                    @Override public void onWritePossible() throws IOException {
                        while (out.isReady()) {
                            out.write(String.valueOf(got.size()).getBytes());
                            later.complete();
                            return;
                        }
                    }

                    @Override public void onError(Throwable wrong) { later.complete(); }
                });
            }

            @Override public void onError(Throwable wrong) { later.complete(); }
        });
    }

    static {
        SERVLETS.put("ok", (q, r) -> text(r, 201, "made\n"));
        SERVLETS.put("stream", (q, r) -> text(r, 200,
                String.valueOf(q.getInputStream().readAllBytes().length)));
        SERVLETS.put("bytes", (q, r) -> {
            int sum = 0;
            for (int c = q.getInputStream().read(); c >= 0; c = q.getInputStream().read()) {
                sum += c;
            }
            text(r, 200, String.valueOf(sum));
        });
        SERVLETS.put("reader", (q, r) -> text(r, 200, q.getReader().readLine()));
        SERVLETS.put("parameters", (q, r) -> text(r, 200, parameters(q)));
        SERVLETS.put("parts", (q, r) -> text(r, 200, parts(q)));
        SERVLETS.put("length", (q, r) -> text(r, 200, q.getContentLength() + " "
                + q.getContentLengthLong()));
        SERVLETS.put("read-later", Days::readLater);
        SERVLETS.put("headers", (q, r) -> {
            StringBuilder out = new StringBuilder();
            for (String name : Collections.list(q.getHeaderNames())) {
                out.append(name.toLowerCase() + ": " + Collections.list(q.getHeaders(name)) + " "
                        + q.getHeader(name) + "\n");
            }
            text(r, 200, out + "attempt " + q.getIntHeader("Idempotency-Attempt"));
        });
    }

    // ---- Answers -------------------------------------------------------------------------------

    static {
        SERVLETS.put("own-lines", (q, r) -> {
            r.setHeader("Idempotency-Status", "mine");
            r.addHeader("Idempotent-Replayed", "true");
            r.addHeader("X-Two", "1");
            r.addHeader("X-Two", "2");
            r.addCookie(new Cookie("c", "v"));
            text(r, 201, "made\n");
        });
        SERVLETS.put("echo-header", (q, r) -> {
            r.setHeader("X-Bytes", q.getHeader("X-Bytes"));
            text(r, 201, "made\n");
        });
        SERVLETS.put("wide-header", (q, r) -> {
            r.setHeader("X-Wide", "a\u20acb\r\nX-Injected: 1");
            text(r, 201, "made\n");
        });
        SERVLETS.put("writer", (q, r) -> {
            r.setContentType("text/html;charset=utf-8");
            r.getWriter().print("\u20ac ");
            r.getWriter().print('\ud83d'); // a pair in two writes
            r.getWriter().print('\ude00');
        });
        SERVLETS.put("writer-latin", (q, r) -> {
            r.setContentType("text/html");
            PrintWriter out = r.getWriter();
            r.setContentType("text/html;charset=utf-8"); // too late
            out.print("\u00e4");
        });
        SERVLETS.put("locale", (q, r) -> {
            r.setLocale(java.util.Locale.FRENCH);
            r.getWriter().print("\u00e9");
        });
        SERVLETS.put("both", (q, r) -> {
            r.getOutputStream();
            try {
                r.getWriter();
            } catch (IllegalStateException right) {
                text(r, 200, "refused");
            }
        });
        SERVLETS.put("reset-buffer", (q, r) -> {
            r.setHeader("X-Stays", "1");
            r.getWriter().print("\u00e4 first");
            r.resetBuffer();
            r.setStatus(201);
            r.getWriter().print("second");
        });
        SERVLETS.put("reset", (q, r) -> {
            r.setHeader("X-Goes", "1");
            r.getWriter().print("first");
            r.setStatus(500);
            r.reset();
            r.setHeader("X-Comes", "1");
            r.getOutputStream().print("second");
        });
        SERVLETS.put("reset-late", (q, r) -> {
            r.sendError(410);
            try {
                r.reset();
            } catch (IllegalStateException right) {
                r.getOutputStream().print("not sent");
                r.setStatus(200);
            }
        });
        SERVLETS.put("send-error", (q, r) -> {
            r.setHeader("X-Own", "1");
            r.getOutputStream().print("not sent");
            r.sendError(404, "no such order");
        });
        SERVLETS.put("redirect", (q, r) -> {
            r.getOutputStream().print("not sent");
            r.sendRedirect("/orders/1");
        });
        SERVLETS.put("flush-last", (q, r) -> {
            text(r, 201, "made\n");
            r.getOutputStream().flush();
            r.flushBuffer();
            r.getOutputStream().close();
        });
        SERVLETS.put("flush-writer", (q, r) -> {
            r.setStatus(201);
            r.getWriter().print("made\n");
            r.getWriter().flush();
            r.getWriter().close();
            r.getWriter().print("not sent");
        });
        SERVLETS.put("flush-middle", (q, r) -> {
            text(r, 200, "one ");
            r.flushBuffer();
            r.getOutputStream().print("two ");
            r.flushBuffer();
            r.getOutputStream().print("three");
        });
        SERVLETS.put("flush-break", (q, r) -> {
            text(r, 200, "one ");
            r.flushBuffer();
            r.getOutputStream().print("two ");
            r.flushBuffer();
            throw new IOException("in the middle");
        });
        SERVLETS.put("short", (q, r) -> {
            r.setContentLength(9);
            r.getOutputStream().print("short");
        });
        SERVLETS.put("over", (q, r) -> {
            r.setHeader("Content-Length", "3");
            r.getOutputStream().print("over");
        });
        SERVLETS.put("short-async", (q, r) -> {
            AsyncContext later = q.startAsync();
            r.setContentLengthLong(9);
            r.getOutputStream().print("short");
            later.complete();
        });
        SERVLETS.put("short-stream", (q, r) -> {
            r.setContentLength(9);
            r.flushBuffer();
            r.getOutputStream().print("short");
        });
        SERVLETS.put("forward-view", (q, r) -> { // as Spring does for a JSP
            r.setHeader("X-View", "1");
            q.getRequestDispatcher("/plain/ok").forward(q, r);
        });
        SERVLETS.put("right", (q, r) -> {
            r.setContentLength(1);
            r.setContentLength(5);
            r.getOutputStream().print("right");
        });
        SERVLETS.put("short-error", (q, r) -> {
            r.setContentLength(9);
            r.sendError(404);
        });
        SERVLETS.put("cookies", (q, r) -> {
            Cookie c = new Cookie("a", "1");
            c.setPath("/p");
            c.setDomain("example.com");
            c.setSecure(true);
            c.setHttpOnly(true);
            c.setAttribute("SameSite", "Lax");
            r.addCookie(c);
            c.setValue("2");
            c.setMaxAge(0);
            r.addCookie(c);
            r.addCookie(new Cookie("q", "\"x y\"".replace(" ", "")));
            try {
                r.addCookie(new Cookie("bad", "a;b"));
                text(r, 500, "a cookie with ;");
            } catch (IllegalArgumentException right) {
                text(r, 201, "made\n");
            }
        });
        SERVLETS.put("session", (q, r) -> {
            q.getSession().setAttribute("a", 1);
            text(r, 201, "made\n");
        });
        SERVLETS.put("say-lines", (q, r) -> {
            r.addHeader("X-A", "1");
            r.addHeader("x-a", "2");
            r.setIntHeader("X-I", 7);
            r.setDateHeader("X-D", 0);
            r.setHeader("Content-Type", "text/html; charset=UTF-8");
            StringBuilder out = new StringBuilder(r.getContentType() + " "
                    + r.getCharacterEncoding() + " " + r.containsHeader("x-A") + " "
                    + r.getHeader("X-A") + " " + r.getHeaders("X-A") + " " + r.getHeader("X-I")
                    + " " + r.getHeader("X-D") + " " + r.getHeader("X-None") + " ");
            r.setContentType("text/plain");
            out.append(r.getContentType()).append(' ');
            r.setCharacterEncoding("iso-8859-1");
            PrintWriter w = r.getWriter();
            r.setCharacterEncoding("utf-8");
            r.setLocale(java.util.Locale.JAPANESE);
            w.print(out + r.getContentType() + " " + r.getLocale());
        });
        SERVLETS.put("locale-ja", (q, r) -> {
            r.setContentType("text/plain");
            r.setLocale(java.util.Locale.FRENCH);
            r.setLocale(java.util.Locale.JAPANESE);
            r.getWriter().print("\u65e5");
        });
        SERVLETS.put("trailers", (q, r) -> {
            r.setTrailerFields(() -> Map.of("X-Sum", "1"));
            text(r, 201, "made\n");
        });
        SERVLETS.put("sendfile", (q, r) -> {
            if (Boolean.TRUE.equals(q.getAttribute("org.apache.tomcat.sendfile.support"))) {
                text(r, 500, "offered");
                return;
            }
            try {
                q.setAttribute("org.apache.tomcat.sendfile.filename", "/etc/hostname");
                text(r, 500, "taken");
            } catch (IllegalStateException right) {
                text(r, 201, "made\n");
            }
        });
        SERVLETS.put("long", (q, r) -> text(r, 200, "x".repeat(100_000)));
        SERVLETS.put("nothing", (q, r) -> { });
        SERVLETS.put("no-content", (q, r) -> r.setStatus(204));
        SERVLETS.put("include", (q, r) -> {
            r.setStatus(201);
            r.getOutputStream().print("outer ");
            q.getRequestDispatcher("/g/ok").include(q, r);
        });
        SERVLETS.put("include-more", (q, r) -> {
            r.setStatus(201);
            r.setContentType("text/plain");
            r.getOutputStream().print("outer ");
            q.getRequestDispatcher("/plain/included").include(q, r);
        });
        SERVLETS.put("included", (q, r) -> {
            r.setHeader("X-Included", "1");
            r.addCookie(new Cookie("included", "1"));
            r.setContentType("text/html");
            r.setContentLength(3);
            r.setStatus(500);
            r.reset();
            r.sendError(500);
            r.getOutputStream().print("inner " + r.encodeURL("/x"));
        });
        SERVLETS.put("unwrap", (q, r) -> {
            ServletResponse inner = r;
            while (inner instanceof ServletResponseWrapper wrapper) {
                inner = wrapper.getResponse();
            }
            text((HttpServletResponse) inner, 201, "made\n");
            inner.flushBuffer();
        });
        SERVLETS.put("forward-in", (q, r) ->
                q.getRequestDispatcher("/forwarded/ok").forward(q, r));
        SERVLETS.put("forward", (q, r) -> {
            r.getOutputStream().print("not sent");
            q.getRequestDispatcher("/g/parameters?more=1").forward(q, r);
        });
    }

    // ---- What breaks ---------------------------------------------------------------------------

    static {
        SERVLETS.put("stack-overflow", (q, r) -> text(r, overflow(0), ""));
        SERVLETS.put("no-memory", (q, r) -> text(r, 200, "" + new long[1 << 30].length));
        SERVLETS.put("throws", (q, r) -> {
            text(r, 201, "not sent");
            throw new IllegalStateException("wrong");
        });
        SERVLETS.put("late", (q, r) -> {
            throw new IOException("wrapped", new SocketTimeoutException());
        });
        SERVLETS.put("interrupted", (q, r) -> {
            Thread.currentThread().interrupt();
            text(r, 201, "made\n");
        });
        SERVLETS.put("slow", (q, r) -> {
            sleep(1500);
            text(r, 201, "made\n");
        });
    }

    // ---- What others turn into an answer ---------------------------------------------------

    static {
        SERVLETS.put("throws-expected", (q, r) -> {
            throw new IllegalArgumentException("an order without a name");
        });
        SERVLETS.put("throws-late", (q, r) -> {
            throw new IllegalStateException("wrong", new SocketTimeoutException());
        });
        SERVLETS.put("async-dispatch-throws-once", (q, r) -> {
            if (q.getDispatcherType() == DispatcherType.ASYNC) {
                throw new IllegalStateException("wrong");
            }
            q.startAsync().dispatch();
        });
    }

    /** As frameworks do for what a servlet throws; X-Catch says which. */
    private static void caught(HttpServletRequest q, HttpServletResponse r, Exception wrong)
            throws IOException {
        String how = q.getHeader("X-Catch");
        r.resetBuffer();
        if (how.equals("servlet")) { // with an error page, or as Spring with a view
            q.setAttribute("jakarta.servlet.error.exception", wrong);
            text(r, wrong instanceof IllegalArgumentException ? 422 : 500, "sorry");
        } else if (how.equals("removed")) {
            q.setAttribute("jakarta.servlet.error.exception", wrong);
            text(r, 500, "sorry");
            q.removeAttribute("jakarta.servlet.error.exception");
        } else if (how.equals("spring")) { // with the body of an @ExceptionHandler
            q.setAttribute("org.springframework.web.servlet.DispatcherServlet.EXCEPTION", wrong);
            text(r, wrong instanceof IllegalArgumentException ? 422 : 500, "sorry");
        } else if (how.equals("spring-error")) {
            q.setAttribute("org.springframework.web.servlet.DispatcherServlet.EXCEPTION", wrong);
            r.sendError(500);
        } else if (how.equals("not-applied")) {
            q.setAttribute("jakarta.servlet.error.exception", wrong);
            r.setHeader("Idempotency-Outcome", "not-applied");
            text(r, 500, "sorry");
        } else {
            if (how.equals("hook")) {
                Once.broken(q, wrong);
            }
            text(r, 500, "sorry");
        }
    }

    // ---- What answers later --------------------------------------------------------------------

    private static AsyncListener listener(String what) {
        return new AsyncListener() {
            @Override public void onTimeout(AsyncEvent e) throws IOException {
                if (what.equals("complete")) {
                    text((HttpServletResponse) e.getAsyncContext().getResponse(), 503, "later\n");
                    e.getAsyncContext().complete();
                } else if (what.equals("dispatch")) {
                    e.getAsyncContext().dispatch("/g/ok");
                }
            }

            @Override public void onError(AsyncEvent e) { }

            @Override public void onStartAsync(AsyncEvent e) {
                e.getAsyncContext().addListener(this);
            }

            @Override public void onComplete(AsyncEvent e) { count("completed"); }
        };
    }

    private static void later(HttpServletRequest q, String what, int timeoutMs) {
        AsyncContext later = q.startAsync();
        later.setTimeout(timeoutMs);
        later.addListener(listener(what));
    }

    static {
        SERVLETS.put("async", (q, r) -> {
            AsyncContext later = q.startAsync();
            later.start(() -> {
                try {
                    text((HttpServletResponse) later.getResponse(), 201, "made\n");
                } catch (IOException wrong) {
                    throw new IllegalStateException(wrong);
                }
                later.complete();
            });
        });
        SERVLETS.put("async-now", (q, r) -> {
            AsyncContext later = q.startAsync(q, r);
            text(r, 201, "made\n");
            later.complete();
        });
        SERVLETS.put("async-dispatch", (q, r) -> {
            int n = q.getAttribute("n") == null ? 0 : (int) q.getAttribute("n");
            q.setAttribute("n", n + 1);
            if (n == 2) {
                text(r, 201, "made\n");
                return;
            }
            AsyncContext later = q.startAsync();
            new Thread(() -> {
                sleep(50);
                later.dispatch();
            }).start();
        });
        SERVLETS.put("async-dispatch-now", (q, r) -> {
            if (q.getDispatcherType() == DispatcherType.ASYNC) {
                text(r, 201, "made\n");
            } else {
                q.startAsync().dispatch();
            }
        });
        SERVLETS.put("async-silent", (q, r) -> later(q, "nothing", 300));
        SERVLETS.put("async-complete-late", (q, r) -> later(q, "complete", 300));
        SERVLETS.put("async-dispatch-late", (q, r) -> later(q, "dispatch", 300));
        SERVLETS.put("async-throws", (q, r) -> {
            q.startAsync();
            throw new IllegalStateException("wrong");
        });
        SERVLETS.put("async-start-throws", (q, r) -> {
            AsyncContext later = q.startAsync();
            later.setTimeout(1000);
            later.start(() -> {
                throw new IllegalStateException("wrong");
            });
        });
        SERVLETS.put("async-dispatch-throws", (q, r) -> {
            if (q.getDispatcherType() == DispatcherType.ASYNC) {
                throw new IllegalStateException("wrong");
            }
            q.startAsync().dispatch();
        });
        SERVLETS.put("async-race-dispatch", (q, r) -> {
            AsyncContext later = q.startAsync();
            long ms = Long.parseLong(q.getHeader("X-Ms"));
            later.setTimeout(100);
            new Thread(() -> {
                sleep(ms);
                try {
                    later.dispatch("/g/ok");
                } catch (IllegalStateException right) {
                    count("refused");
                }
            }).start();
        });
        SERVLETS.put("async-race", (q, r) -> {
            AsyncContext later = q.startAsync();
            long ms = Long.parseLong(q.getHeader("X-Ms"));
            later.setTimeout(100);
            new Thread(() -> {
                sleep(ms);
                try {
                    text((HttpServletResponse) later.getResponse(), 201, "made\n");
                    later.complete();
                } catch (IOException | RuntimeException right) {
                    count("refused");
                }
            }).start();
        });
        SERVLETS.put("async-lines", (q, r) -> { // until long after its time
            AsyncContext later = q.startAsync();
            later.setTimeout(100);
            HttpServletResponse given = (HttpServletResponse) later.getResponse();
            new Thread(() -> {
                try {
                    for (long end = System.nanoTime() + 4_000_000_000L; System.nanoTime() < end;) {
                        given.setHeader("X-Late", "1");
                        given.setContentLength(5);
                        given.addCookie(new Cookie("late", "1"));
                        given.setCharacterEncoding("utf-16");
                        given.setLocale(java.util.Locale.JAPANESE);
                        given.setStatus(299);
                        given.setContentType("text/late");
                        if (!given.isCommitted()) {
                            given.resetBuffer();
                        }
                    }
                    q.getSession();
                    count("session");
                } catch (IllegalStateException right) {
                    count("told-so");
                }
            }).start();
        });
        SERVLETS.put("async-slow", (q, r) -> {
            AsyncContext later = q.startAsync();
            later.setTimeout(0);
            later.addListener(new AsyncListener() {
                @Override public void onTimeout(AsyncEvent e) { count("heard"); }

                @Override public void onError(AsyncEvent e) { count("heard"); }

                @Override public void onStartAsync(AsyncEvent e) { }

                @Override public void onComplete(AsyncEvent e) { count("completed"); }
            });
            r.setStatus(201);
            Thread work = new Thread(() -> {
                sleep(4000);
                try {
                    HttpServletResponse given = (HttpServletResponse) later.getResponse();
                    given.setContentType("text/plain");
                    given.getOutputStream().print("made\n");
                    later.complete();
                } catch (IOException | RuntimeException wrong) {
                    count("heard");
                }
            });
            work.setDaemon(false); // it goes on when the container has stopped
            work.start();
        });
        SERVLETS.put("async-twice", (q, r) -> {
            AsyncContext later = q.startAsync();
            text(r, 201, "made\n");
            later.complete();
            try {
                later.complete();
            } catch (IllegalStateException right) {
                count("refused-twice");
            }
        });
        SERVLETS.put("async-after-time", (q, r) -> {
            AsyncContext later = q.startAsync();
            later.setTimeout(200);
            new Thread(() -> {
                sleep(3000);
                try {
                    text((HttpServletResponse) later.getResponse(), 201, "too late\n");
                    later.complete();
                    count("taken");
                } catch (IOException | IllegalStateException right) {
                    count("refused");
                }
            }).start();
        });
    }

    // ---- Calls ---------------------------------------------------------------------------------

    private static byte[] work(String what, String key) throws Exception {
        count("work-" + key);
        if (what.equals("throws")) {
            throw new IllegalStateException("wrong");
        } else if (what.equals("error")) {
            overflow(0);
        } else if (what.equals("not-applied")) {
            throw new Calls.NotApplied("refused", null);
        } else if (what.equals("slow")) {
            sleep(1500);
        } else if (what.equals("interrupted")) {
            Thread.currentThread().interrupt();
        }
        return what.equals("null") ? null : ("paid " + key).getBytes();
    }

    static {
        SERVLETS.put("call", (q, r) -> {
            String key = q.getParameter("key");
            String what = q.getParameter("what");
            Map<String, Object> more = new HashMap<>();
            for (String name : List.of("wait_ms", "lease_ms", "run_ms")) {
                if (q.getParameter(name) != null) {
                    more.put(name, Long.valueOf(q.getParameter(name)));
                }
            }
            Calls here = q.getParameter("at") == null ? calls
                    : new Calls(new Once.Options().serve(q.getParameter("at")));
            try {
                byte[] result = here.call("charge", key, q.getParameter("print"), more,
                        () -> work(what, key));
                text(r, 200, new String(result));
            } catch (Calls.NoResult none) {
                r.setHeader("X-Says", none.getMessage());
                text(r, 409, none.state + " " + none.retryAfterMs + " " + none.code + " "
                        + new String(none.body));
            } catch (Exception | Error wrong) {
                text(r, 500, wrong.getClass().getSimpleName());
            }
            Thread.interrupted();
        });
    }

    // ---- What is wrong -------------------------------------------------------------------------

    static {
        SERVLETS.put("bad-route", (q, r) -> {
            try {
                new Once(options(serve, token).route(Map.of(q.getParameter("name"), "x")))
                        .init(null);
                text(r, 200, "taken");
            } catch (ServletException right) {
                text(r, 500, right.getMessage());
            }
        });
        SERVLETS.put("bad-call", (q, r) -> {
            try {
                calls.call(q.getParameter("group"), q.getParameter("key"),
                        q.getParameter("print"), () -> work("ok", "bad"));
                text(r, 200, "taken");
            } catch (IllegalArgumentException right) {
                text(r, 500, right.getMessage());
            }
        });
    }

    // ---- What others do with a body before -----------------------------------------------------

    /** X-Take says how. */
    private static void take(HttpServletRequest q, HttpServletResponse r, FilterChain chain)
            throws IOException, ServletException {
        String how = q.getHeader("X-Take");
        HttpServletRequest next = q;
        switch (how == null ? "parameter" : how) {
            case "parameter" -> q.getParameter("a");
            case "stream" -> q.getInputStream().readAllBytes();
            case "peek" -> q.getInputStream().readNBytes(3);
            case "reader" -> q.getReader().lines().count();
            case "peek-reader" -> q.getReader().read();
            case "parts" -> q.getParts();
            case "look" -> q.getInputStream().isReady();
            case "restore" -> next = restored(q);
            default -> {
                if (q.getDispatcherType() == DispatcherType.REQUEST) {
                    readThenDispatch(q, how.equals("listener"));
                    return;
                }
            }
        }
        chain.doFilter(next, r);
    }

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

    private static void readThenDispatch(HttpServletRequest q, boolean reads) throws IOException {
        AsyncContext later = q.startAsync();
        if (!reads) {
            later.start(later::dispatch);
            return;
        }
        ServletInputStream in = q.getInputStream();
        in.setReadListener(new ReadListener() {
            @Override public void onDataAvailable() throws IOException {
                while (in.isReady() && in.read() >= 0) {
                    continue;
                }
            }

            @Override public void onAllDataRead() { later.dispatch(); }

            @Override public void onError(Throwable wrong) { later.complete(); }
        });
    }

    // ---- The service ---------------------------------------------------------------------------

    private static void count(String what) {
        RUNS.computeIfAbsent(what, w -> new AtomicInteger()).incrementAndGet();
    }

    private static final class Dispatch extends HttpServlet {
        private static final long serialVersionUID = 1;

        @Override protected void service(HttpServletRequest q, HttpServletResponse r)
                throws IOException {
            String path = q.getRequestURI();
            if (path.startsWith("/runs/")) {
                text(r, 200, RUNS.getOrDefault(path.substring(6), new AtomicInteger()).toString());
                return;
            }
            if (q.getDispatcherType() != DispatcherType.INCLUDE) {
                count(q.getHeader("X-Case") != null ? q.getHeader("X-Case") : path);
            }
            String include = (String) q.getAttribute("jakarta.servlet.include.request_uri");
            path = include == null ? path : include;
            try {
                SERVLETS.get(path.substring(path.lastIndexOf('/') + 1)).serve(q, r);
            } catch (IOException | RuntimeException wrong) {
                throw wrong;
            } catch (Exception wrong) {
                throw new IOException(wrong);
            }
        }
    }

    private static void add(StandardContext context, String name, Filter filter, String path,
            DispatcherType... types) {
        FilterDef def = new FilterDef();
        def.setFilterName(name);
        def.setFilter(filter);
        def.setAsyncSupported("true");
        context.addFilterDef(def);
        FilterMap map = new FilterMap();
        map.setFilterName(name);
        map.addURLPattern(path);
        for (DispatcherType type : types) {
            map.setDispatcher(type.name());
        }
        context.addFilterMap(map);
    }

    private static Once.Options options(String serve, String tokenFile) {
        return new Once.Options().serve(serve).tokenFile(tokenFile)
                .scope(q -> q.getHeader("X-User") == null ? "ann"
                        : q.getHeader("X-User").equals("half") ? "\ud800"
                        : q.getHeader("X-User").equals("none") ? null
                        : q.getHeader("X-User").equals("empty") ? ""
                        : q.getHeader("X-User").equals("blank") ? " \t"
                        : q.getHeader("X-User").equals("pair") ? "\ud83d\ude00"
                        : q.getHeader("X-User"));
    }

    public static void main(String[] args) throws Exception {
        serve = args[0];
        token = args.length > 2 ? args[2] : null;
        calls = new Calls(options(args[0], token));
        boolean later = System.getenv("DAYS_LATER") != null;
        Tomcat tomcat = new Tomcat();
        tomcat.setBaseDir(args[1]);
        Connector c = new Connector();
        c.setProperty("address", "127.0.0.1");
        c.setProperty("maxThreads", "300");
        c.setPort(0);
        c.addUpgradeProtocol(new Http2Protocol());
        tomcat.setConnector(c);
        StandardContext context = (StandardContext) tomcat.addContext("", args[1]);
        context.setAllowCasualMultipartParsing(true);
        context.addLocaleEncodingMappingParameter("ja", "Shift_JIS");
        context.setSuspendWrappedResponseAfterForward(later); // as Tomcat 11 does
        Tomcat.addServlet(context, "all", new Dispatch()).setAsyncSupported(true);
        context.addServletMapping("/", "all");
        add(context, "outer", (q, r, chain) -> {
            ((HttpServletResponse) r).setHeader("X-Outer", "1");
            ((HttpServletResponse) r).setHeader("X-Both", "outer");
            chain.doFilter(q, r);
        }, "/outer/*", DispatcherType.REQUEST);
        DispatcherType[] both = {DispatcherType.REQUEST, DispatcherType.ASYNC};
        for (String path : List.of("/taken/*", "/taken-print/*", "/taken-form/*")) {
            add(context, "taker" + path, (q, r, chain) -> take((HttpServletRequest) q,
                    (HttpServletResponse) r, chain), path, both);
        }
        add(context, "taken-print", new Once(options(serve, token).fingerprint(
                q -> q.getHeader("X-Print"))), "/taken-print/*", both);
        add(context, "taken-form", new Once(options(serve, token).fingerprint(
                Days::parameters)), "/taken-form/*", both);
        add(context, "left", (q, r, chain) -> {
            chain.doFilter(q, r);
            if (q.isAsyncStarted()) {
                ((AsyncContextImpl) q.getAsyncContext()).setErrorState(
                        new IOException("the client has left"), true);
            }
        }, "/left/*", DispatcherType.REQUEST);
        add(context, "left-once", new Once(options(serve, token)), "/left/*", both);
        add(context, "inner-once", new Once(options(serve, token)), "/inner/*", both);
        add(context, "inner", (q, r, chain) -> {
            try {
                chain.doFilter(q, r);
            } catch (IOException | RuntimeException wrong) {
                caught((HttpServletRequest) q, (HttpServletResponse) r, wrong);
            }
        }, "/inner/*", both);
        add(context, "said", new Once(options(serve, token).key(q -> q.getHeader("X-Key"))
                .fingerprint(q -> q.getHeader("X-Print")).label(q -> q.getHeader("X-Label"))),
                "/said/*", both);
        add(context, "lease", new Once(options(serve, token).route(
                Map.of("lease", "3s", "run", "3s"))), "/lease/*", both);
        Once plain = new Once(options(args[0], token));
        add(context, "g", plain, "/g/*", DispatcherType.values());
        add(context, "twice", plain, "/g/*", DispatcherType.values());
        add(context, "outer-once", plain, "/outer/*", both);
        add(context, "taken-once", plain, "/taken/*", both);
        add(context, "no-async", plain, "/no-async/*", DispatcherType.REQUEST);
        add(context, "small", new Once(options(args[0], token).route(
                Map.of("max_request", "1k", "max_response", "10k"))), "/small/*", both);
        add(context, "dry", new Once(options(args[0], token).route(Map.of("dry_run", true))),
                "/dry/*", both);
        add(context, "wait", new Once(options(args[0], token).route(
                Map.of("in_flight", "wait=20s"))), "/wait/*", both);
        add(context, "forwarded", plain, "/forwarded/*", DispatcherType.FORWARD);
        add(context, "named", new Once(options(args[0], token).route("big")), "/named/*", both);
        add(context, "print", new Once(options(args[0], token).fingerprint(q -> "same")),
                "/print/*", both);
        tomcat.start();
        Path port = Path.of(args[1], "port.new");
        Files.writeString(port, String.valueOf(tomcat.getConnector().getLocalPort()));
        Files.move(port, Path.of(args[1], "port"));
        sun.misc.Signal.handle(new sun.misc.Signal("TERM"), s -> new Thread(() -> {
            try {
                tomcat.stop();
            } catch (org.apache.catalina.LifecycleException wrong) {
                throw new IllegalStateException(wrong);
            }
        }).start());
        tomcat.getServer().await();
    }
}
