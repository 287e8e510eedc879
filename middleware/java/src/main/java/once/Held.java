// SPDX-License-Identifier: Apache-2.0
package once;

import jakarta.servlet.DispatcherType;
import jakarta.servlet.ServletOutputStream;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.WriteListener;
import jakarta.servlet.http.Cookie;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import jakarta.servlet.http.HttpServletResponseWrapper;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.io.Writer;
import java.lang.System.Logger.Level;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.charset.Charset;
import java.util.Collection;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Supplier;

/**
 * The response, which keeps what the servlet answers until the server has recorded it. Nothing of
 * it is the container's before: the container's response has 502 as status, since what leaves by
 * no way of ours is unknown. It refuses to send a byte before.
 */
final class Held extends HttpServletResponseWrapper {
    // Where frameworks leave an exception that they have answered for.
    private static final List<String> HIDDEN = List.of("jakarta.servlet.error.exception",
            "org.springframework.web.servlet.DispatcherServlet.EXCEPTION");

    final Exchange x;
    private final HttpServletRequest asked;
    private final HttpServletResponse raw;
    private final HttpServletResponse face = faceOf(this);
    private final List<List<String>> outer; // lines of filters that stand before
    private volatile Throwable seen;
    private volatile Throwable broken;
    private final Object before; // an exception that was there
    private final Head head;
    private final boolean isHead;
    private final ByteArrayOutputStream body = new ByteArrayOutputStream();
    // Who tells the server has it until the client has the answer: meanwhile the container may
    // find that the time of an asynchronous answer is over, and must not end the response.
    final ReentrantLock lock = new ReentrantLock();
    volatile boolean told; // the server is asked, or has said
    private final Out out = new Out();
    volatile Thread deaf; // the container's, which says 500 where its response has broken
    Later later; // what the servlet answers on another thread
    private PrintWriter writer;
    private boolean binary; // the servlet has taken the stream
    private volatile int status = 200;
    private Locale locale;
    private String ofLocale; // the charset that came with it
    private int buffer;
    private boolean flushed;
    private volatile boolean closed;
    private volatile boolean stream; // what follows is sent as it comes
    private volatile boolean over; // the container's response is no longer ours

    Held(Exchange x, HttpServletRequest asked, HttpServletResponse raw) {
        super(raw);
        this.x = x;
        this.asked = asked;
        this.raw = raw;
        outer = Answer.linesOf(raw);
        head = new Head(outer, raw.getCharacterEncoding());
        isHead = asked.getMethod().equals("HEAD");
        locale = raw.getLocale();
        buffer = raw.getBufferSize();
        before = asked.getAttribute(HIDDEN.get(0));
        raw.setStatus(502);
    }

    // Some forwards of Tomcat unwrap the response to end it, and programs do so to write around
    // this. They get this one again, as no wrapper.

    @Override public ServletResponse getResponse() {
        ServletResponse inner = super.getResponse();
        return inner == raw ? face : inner;
    }

    @Override public void setResponse(ServletResponse to) {
        super.setResponse(to == face ? raw : to);
    }

    private static HttpServletResponse faceOf(Held held) {
        return (HttpServletResponse) Proxy.newProxyInstance(
                HttpServletResponse.class.getClassLoader(),
                new Class<?>[] {HttpServletResponse.class}, (face, method, args) -> {
                    try {
                        return method.invoke(held, args);
                    } catch (InvocationTargetException wrong) {
                        throw wrong.getCause();
                    }
                });
    }

    /** A servlet that is included adds to the body alone. Containers put a wrapper of their own
     *  under this response, or say so by the request. */
    private boolean isFixed() {
        if (isCommitted() || super.getResponse() != raw) {
            return true;
        }
        try {
            return !over && asked.getDispatcherType() == DispatcherType.INCLUDE;
        } catch (IllegalStateException recycled) {
            return false;
        }
    }

    /** With the lines that the container sets around this response: the cookie of a session. */
    private List<List<String>> lines() {
        List<List<String>> lines = head.lines();
        if (!over) {
            Answer.linesOf(raw).stream().filter(line -> line.get(0).equalsIgnoreCase("Set-Cookie")
                    && !lines.contains(line)).forEach(lines::add);
        }
        lines.removeAll(outer);
        if (isHead) { // it says how long it would be
            lines.removeIf(line -> line.get(0).equalsIgnoreCase("Content-Length"));
        }
        return lines;
    }

    /** What a framework has turned into an answer: an exception is unknown, unless the answer
     *  says more, or is not the 5xx of an error that nobody expected. */
    private Throwable hidden() {
        if (broken != null || !over && asked.getAttribute(Once.BROKEN) instanceof Throwable) {
            return broken != null ? broken : (Throwable) asked.getAttribute(Once.BROKEN);
        }
        return status < 500 || head.has("Idempotency-Outcome") ? null : seen;
    }

    /** Some remove it again; and the request may be taken back before the answer comes. */
    void see(String name, Throwable wrong) {
        seen = HIDDEN.contains(name) ? wrong : seen;
        broken = name.equals(Once.BROKEN) ? wrong : broken;
    }

    /** Without memory, say, an answer may be recorded or not. */
    Answer ask(Supplier<Answer> server) {
        try {
            return server.get();
        } catch (RuntimeException | Error wrong) {
            x.log(Level.ERROR, "the server cannot be asked", wrong);
            return Answer.UNKNOWN;
        }
    }

    /** What the servlet has set is in the answer, or is not sent. */
    private void answer(Answer a) throws IOException {
        asked.setAttribute(HIDDEN.get(0), before); // Tomcat would make its page of it
        raw.reset();
        Answer.put(raw, outer);
        if (!stream) {
            a.send(raw);
            return;
        }
        Answer.put(raw, a.lines());
        raw.setStatus(a.status());
        String length = head.first("Content-Length");
        if (length != null) {
            raw.setHeader("Content-Length", length);
        }
        body.writeTo(raw.getOutputStream());
        raw.flushBuffer();
    }

    private boolean isStream() {
        String type = head.type() == null ? "" : head.type();
        type = type.split(";", 2)[0].strip().toLowerCase(Locale.ROOT);
        return type.equals("text/event-stream") || type.equals("application/x-ndjson")
                || "no".equalsIgnoreCase(head.first("X-Accel-Buffering"));
    }

    /** It is recorded as not kept. */
    private void begin() throws IOException {
        lock.lock();
        try {
            if (!told) {
                told = true;
                Answer a = ask(() -> x.end(status, lines(), null));
                stream = a.own() && !over;
                if (!over) {
                    answer(a);
                    raw.flushBuffer();
                }
            }
        } finally {
            lock.unlock();
        }
        if (!stream) {
            throw new IOException("once: another answer was sent");
        }
    }

    private void add(byte[] data, int from, int n) throws IOException {
        if (stream) {
            send(data, from, n);
        } else if (told) {
            throw new IOException("once: another answer was sent");
        } else if (!closed && n > 0) {
            boolean isFirst = body.size() == 0;
            body.write(data, from, n);
            if (flushed || isFirst && isStream()
                    || body.size() > x.run().number("max_response")) {
                begin();
            }
        }
    }

    /** A thread that comes later writes into no other response of the connection. */
    private void send(byte[] data, int from, int n) throws IOException {
        lock.lock();
        try {
            if (over) {
                throw new IOException("once: the answer has ended");
            }
            raw.getOutputStream().write(data, from, n);
            if (data.length == 0) {
                raw.flushBuffer();
            }
        } finally {
            lock.unlock();
        }
    }

    /** The servlet has returned, or completed. */
    void finish() throws IOException {
        lock.lock();
        try {
            if (!told) {
                told = true;
                answer(ask(this::end));
            }
        } finally {
            over = true;
            lock.unlock();
        }
    }

    private Answer end() {
        Throwable wrong = hidden();
        if (wrong != null) {
            x.log(Level.ERROR, "an exception was answered with " + status
                    + ", so that the outcome is unknown", wrong);
            Answer a = x.broken(Exchange.isTimeout(wrong) ? 504 : 502);
            if (a != null) { // null: a dry run
                return a;
            }
        }
        return x.end(status, lines(), body.toByteArray());
    }

    /** The container has given this response up, and the servlet goes on: its outcome is told,
     *  and nobody is left who gets its answer. */
    void tell(boolean isWhole) {
        lock.lock();
        try {
            over = true;
            if (!told) {
                told = true;
                ask(() -> isWhole ? end() : x.broken(502));
            }
        } finally {
            lock.unlock();
        }
    }

    /** The container ends now, and the servlet runs: what it will have done is not known yet. */
    void stop() throws IOException {
        answer(Answer.UNKNOWN);
        over = true;
    }

    /** The servlet has not returned. False: it breaks as it would without Once, as a stream
     *  does whose client has a head. */
    boolean broke(Throwable wrong, int code) throws IOException {
        x.log(Level.ERROR, "the servlet broke", wrong);
        lock.lock();
        try {
            if (told) {
                return !stream;
            }
            told = true;
            Answer a = ask(() -> x.broken(code));
            if (a != null) {
                answer(a);
            } else {
                raw.setStatus(status);
            }
            return a != null;
        } finally {
            over = true;
            lock.unlock();
        }
    }

    private void check() {
        if (isCommitted()) {
            throw new IllegalStateException("the response is committed");
        }
    }

    // What the servlet sets is kept here, and no more of it once the answer is told.

    @Override public boolean isCommitted() { return closed || told; }

    @Override public int getStatus() { return status; }

    @Override public void setStatus(int code) {
        status = isFixed() || Thread.currentThread() == deaf ? status : code;
    }

    @Override public void setHeader(String name, String value) {
        if ("Content-Type".equalsIgnoreCase(name)) {
            setContentType(value);
        } else if (!isFixed()) {
            head.set(name, value);
        }
    }

    @Override public void addHeader(String name, String value) {
        if ("Content-Type".equalsIgnoreCase(name)) {
            setContentType(value);
        } else if (!isFixed()) {
            head.add(name, value);
        }
    }

    @Override public void setIntHeader(String name, int value) {
        setHeader(name, String.valueOf(value));
    }

    @Override public void addIntHeader(String name, int value) {
        addHeader(name, String.valueOf(value));
    }

    @Override public void setDateHeader(String name, long ms) { setHeader(name, Head.date(ms)); }

    @Override public void addDateHeader(String name, long ms) { addHeader(name, Head.date(ms)); }

    @Override public void addCookie(Cookie c) { addHeader("Set-Cookie", Head.text(c)); }

    @Override public boolean containsHeader(String name) { return head.has(name); }

    @Override public String getHeader(String name) { return head.first(name); }

    @Override public Collection<String> getHeaders(String name) { return head.all(name); }

    @Override public Collection<String> getHeaderNames() { return head.names(); }

    @Override public void setContentLength(int n) { setContentLengthLong(n); }

    @Override public void setContentLengthLong(long n) {
        setHeader("Content-Length", String.valueOf(n));
    }

    @Override public void setContentType(String type) {
        if (!isFixed()) {
            head.setType(type, writer == null); // a later one changes no writer
        }
    }

    @Override public String getContentType() { return head.type(); }

    @Override public void setCharacterEncoding(String name) {
        if (!isFixed() && writer == null) {
            head.setCharset(name);
        }
    }

    // Of later versions of servlets: the wrapper would take it to the container.
    public void setCharacterEncoding(Charset charset) {
        setCharacterEncoding(charset == null ? null : charset.name());
    }

    @Override public String getCharacterEncoding() { return head.charset(); }

    /** As a line that can be read again. Only the container has the table of charsets. */
    @Override public void setLocale(Locale to) {
        lock.lock();
        try {
            if (to == null || isFixed()) {
                return;
            }
            locale = to;
            head.set("Content-Language", to.toLanguageTag());
            if (writer == null && !over
                    && (!head.hasCharset() || head.charset().equals(ofLocale))) {
                raw.setLocale(to);
                ofLocale = raw.getCharacterEncoding();
                head.setCharset(ofLocale);
            }
        } finally {
            lock.unlock();
        }
    }

    @Override public Locale getLocale() { return locale; }

    @Override public String encodeURL(String url) { return raw.encodeURL(url); }

    @Override public String encodeRedirectURL(String url) { return raw.encodeRedirectURL(url); }

    @Override public void setBufferSize(int size) {
        check();
        buffer = size;
    }

    @Override public int getBufferSize() { return buffer; }

    @Override public void reset() {
        check();
        if (isFixed()) {
            return;
        }
        resetBuffer();
        head.clear();
        status = 200;
        writer = null;
        binary = false;
    }

    @Override public void resetBuffer() {
        check();
        body.reset();
        flushed = false;
    }

    /** Without an error page: the container makes it when this filter has returned. */
    @Override public void sendError(int code, String message) {
        check();
        if (isFixed()) {
            return;
        }
        resetBuffer();
        close(code);
    }

    private void close(int code) {
        status = code;
        head.remove("Content-Length"); // of a body that is not sent
        closed = true;
    }

    @Override public void sendError(int code) { sendError(code, null); }

    @Override public void sendRedirect(String to) { sendRedirect(to, 302, true); }

    // Of later versions of servlets: the wrapper would take them to the container.

    public void sendRedirect(String to, int code) { sendRedirect(to, code, true); }

    public void sendRedirect(String to, boolean clear) { sendRedirect(to, 302, clear); }

    public void sendRedirect(String to, int code, boolean clear) {
        check();
        if (isFixed()) {
            return;
        }
        if (clear) {
            resetBuffer();
        }
        setHeader("Location", to);
        close(code);
    }

    /** No byte may leave before the server has answered, not even of a 1xx. */
    public void sendEarlyHints() { }

    /** Neither sent nor recorded: docs/http.md, section 5. */
    @Override public void setTrailerFields(Supplier<Map<String, String>> fields) { check(); }

    @Override public Supplier<Map<String, String>> getTrailerFields() { return null; }

    /** A flush makes a stream of an answer that goes on after it. Spring flushes each answer
     *  at its end, and those are to be kept. */
    @Override public void flushBuffer() throws IOException {
        if (stream) {
            send(Answer.NONE, 0, 0);
        } else if (!isCommitted()) {
            flushed = true;
            if (isStream()) {
                begin();
            }
        }
    }

    @Override public ServletOutputStream getOutputStream() {
        if (writer != null) {
            throw new IllegalStateException("getWriter() was called");
        }
        binary = true;
        return out;
    }

    @Override public PrintWriter getWriter() throws IOException {
        if (binary) {
            throw new IllegalStateException("getOutputStream() was called");
        }
        if (writer == null) {
            writer = new PrintWriter(new Text(getCharacterEncoding()));
            head.setCharset(getCharacterEncoding()); // it is in the type from now on
        }
        return writer;
    }

    /** Nothing waits in the encoder: a reset of the buffer finds all of it here. */
    private final class Text extends Writer {
        private final OutputStreamWriter encoder;

        Text(String charset) throws IOException {
            encoder = new OutputStreamWriter(new OutputStream() {
                @Override public void write(int b) throws IOException { out.write(b); }

                @Override public void write(byte[] data, int from, int n) throws IOException {
                    add(data, from, n);
                }
            }, charset);
        }

        @Override public void write(char[] text, int from, int n) throws IOException {
            encoder.write(text, from, n);
            encoder.flush();
        }

        @Override public void flush() throws IOException { flushBuffer(); }

        @Override public void close() throws IOException { out.close(); }
    }

    private final class Out extends ServletOutputStream {
        @Override public void write(int b) throws IOException {
            add(new byte[] {(byte) b}, 0, 1);
        }

        @Override public void write(byte[] data, int from, int n) throws IOException {
            add(data, from, n);
        }

        @Override public void flush() throws IOException { flushBuffer(); }

        @Override public void close() throws IOException {
            closed = true;
            lock.lock();
            try {
                if (stream && !over) {
                    raw.getOutputStream().close();
                }
            } finally {
                lock.unlock();
            }
        }

        @Override public boolean isReady() { return true; }

        @Override public void setWriteListener(WriteListener listener) {
            if (later.real == null) {
                throw new IllegalStateException("once: startAsync() was not called");
            }
            later.start(() -> {
                try {
                    listener.onWritePossible();
                } catch (IOException | RuntimeException wrong) {
                    listener.onError(wrong);
                }
            });
        }
    }
}
