// SPDX-License-Identifier: Apache-2.0
package once;

import jakarta.servlet.ServletOutputStream;
import jakarta.servlet.WriteListener;
import jakarta.servlet.http.HttpServletResponse;
import jakarta.servlet.http.HttpServletResponseWrapper;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.io.Writer;
import java.lang.System.Logger.Level;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Supplier;

/**
 * The response, which keeps what the servlet answers until the server has recorded it. Header lines
 * are kept by the container's response, with 502 as status: what leaves by no way of ours is
 * unknown. It refuses to send a byte before.
 */
final class Held extends HttpServletResponseWrapper {
    final Exchange x;
    private final HttpServletResponse raw;
    private final List<List<String>> outer; // lines of filters that stand before
    private final ByteArrayOutputStream body = new ByteArrayOutputStream();
    // Who tells the server has it until the client has the answer: meanwhile the container may
    // find that the time of an asynchronous answer is over, and must not end the response.
    final ReentrantLock lock = new ReentrantLock();
    volatile boolean told; // the server is asked, or has said
    private final Out out = new Out();
    Later later; // what the servlet answers on another thread
    private PrintWriter writer;
    private String charset; // of the writer
    private boolean binary; // the servlet has taken the stream
    private int status = 200;
    private boolean flushed;
    private boolean closed;
    private volatile boolean stream; // what follows is sent as it comes

    Held(Exchange x, HttpServletResponse raw) {
        super(raw);
        this.x = x;
        this.raw = raw;
        outer = Answer.linesOf(raw);
        raw.setStatus(502);
    }

    private List<List<String>> lines() {
        if (writer != null && body.size() > 0) {
            raw.setCharacterEncoding(charset); // a later setContentType() changes no writer
        }
        List<List<String>> lines = Answer.linesOf(raw);
        lines.removeAll(outer);
        return lines;
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
        raw.reset();
        Answer.put(raw, outer);
        if (!stream) {
            a.send(raw);
            return;
        }
        Answer.put(raw, a.lines());
        raw.setStatus(a.status());
        body.writeTo(raw.getOutputStream());
        raw.flushBuffer();
    }

    private boolean isStream() {
        String type = raw.getContentType() == null ? "" : raw.getContentType();
        type = type.split(";", 2)[0].strip().toLowerCase(Locale.ROOT);
        return type.equals("text/event-stream") || type.equals("application/x-ndjson");
    }

    /** It is recorded as not kept. */
    private void begin() throws IOException {
        lock.lock();
        try {
            if (!told) {
                told = true;
                Answer a = ask(() -> x.end(status, lines(), null));
                stream = a.own();
                answer(a);
                raw.flushBuffer();
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
            raw.getOutputStream().write(data, from, n);
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

    /** The servlet has returned, or completed. */
    void finish() throws IOException {
        lock.lock();
        try {
            if (!told) {
                told = true;
                answer(ask(() -> x.end(status, lines(), body.toByteArray())));
            }
        } finally {
            lock.unlock();
        }
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
            lock.unlock();
        }
    }

    private void check() {
        if (isCommitted()) {
            throw new IllegalStateException("the response is committed");
        }
    }

    @Override public boolean isCommitted() { return closed || told; }

    @Override public int getStatus() { return status; }

    @Override public void setStatus(int code) { status = isCommitted() ? status : code; }

    @Override public void reset() {
        resetBuffer();
        raw.reset();
        raw.setStatus(502);
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
        resetBuffer();
        status = code;
        closed = true;
    }

    @Override public void sendError(int code) { sendError(code, null); }

    @Override public void sendRedirect(String to) { sendRedirect(to, 302, true); }

    // Of later versions of servlets: the wrapper would take them to the container.

    public void sendRedirect(String to, int code) { sendRedirect(to, code, true); }

    public void sendRedirect(String to, boolean clear) { sendRedirect(to, 302, clear); }

    public void sendRedirect(String to, int code, boolean clear) {
        check();
        if (clear) {
            resetBuffer();
        }
        setHeader("Location", to);
        status = code;
        closed = true;
    }

    /** No byte may leave before the server has answered, not even of a 1xx. */
    public void sendEarlyHints() { }

    /** As a line that can be read again. */
    @Override public void setLocale(Locale locale) {
        super.setLocale(locale);
        setHeader("Content-Language", locale.toLanguageTag());
    }

    /** Nobody records them. */
    @Override public void setTrailerFields(Supplier<Map<String, String>> fields) { }

    /** A flush makes a stream of an answer that goes on after it. Spring flushes each answer
     *  at its end, and those are to be kept. */
    @Override public void flushBuffer() throws IOException {
        if (stream) {
            raw.flushBuffer();
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
            charset = raw.getCharacterEncoding();
            writer = new PrintWriter(new Text(charset));
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
            if (stream) {
                raw.getOutputStream().close();
            }
        }

        @Override public boolean isReady() { return true; }

        @Override public void setWriteListener(WriteListener listener) {
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
