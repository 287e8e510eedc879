// SPDX-License-Identifier: Apache-2.0
package once;

import jakarta.servlet.AsyncContext;
import jakarta.servlet.ReadListener;
import jakarta.servlet.ServletContext;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletInputStream;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import jakarta.servlet.http.HttpServletResponse;
import jakarta.servlet.http.HttpSession;
import jakarta.servlet.http.HttpUpgradeHandler;
import jakarta.servlet.http.Part;
import jakarta.servlet.http.PushBuilder;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URLDecoder;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.Enumeration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * The request, with its body to be read again: as a stream, by a reader, or as a form. A guarded
 * one has the lines of the server in place of the client's. It refuses what would answer around the
 * response that is held.
 */
final class Given extends HttpServletRequestWrapper {
    static final int PIECES_MAX = 10_000; // parameters of a form, or its parts
    private final byte[] body; // null: it was read before, and the container has what is left
    private final ServletInputStream rest; // of a body that is too long to be guarded, or null
    private final ServletResponse response;
    private final Held held; // null: it is not guarded
    private final Later later;
    private final Map<String, String> lines = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
    private In in;
    private BufferedReader reader;
    private Map<String, String[]> parameters;
    private List<Piece> pieces;

    Given(HttpServletRequest q, byte[] body, ServletInputStream rest, HttpServletResponse r) {
        super(q);
        this.body = body;
        this.rest = rest;
        response = r;
        Once.INTERNAL.forEach(name -> lines.put(name, null));
        held = r instanceof Held it ? it : null;
        later = held == null ? null : new Later(held);
        if (held != null) {
            held.later = later;
            lines.put("Idempotency-Attempt", String.valueOf(held.x.run().number("attempt")));
            lines.put("Idempotency-Record", held.x.run().text("record"));
            if (held.x.run().text("key") != null) {
                lines.put("Idempotency-Key", held.x.run().text("key"));
            }
        }
    }

    @Override public String getHeader(String name) {
        return lines.containsKey(name) ? lines.get(name) : super.getHeader(name);
    }

    @Override public Enumeration<String> getHeaders(String name) {
        return !lines.containsKey(name) ? super.getHeaders(name) : Collections.enumeration(
                lines.get(name) == null ? List.of() : List.of(lines.get(name)));
    }

    @Override public Enumeration<String> getHeaderNames() {
        List<String> names = Collections.list(super.getHeaderNames());
        names.removeIf(lines::containsKey);
        lines.forEach((name, value) -> names.addAll(value == null ? List.of() : List.of(name)));
        return Collections.enumeration(names);
    }

    @Override public int getIntHeader(String name) {
        return getHeader(name) == null ? -1 : Integer.parseInt(getHeader(name));
    }

    /** Of a body that came in chunks, too. */
    @Override public long getContentLengthLong() {
        return rest == null && body != null && body.length > 0 ? body.length
                : super.getContentLengthLong();
    }

    @Override public int getContentLength() {
        long length = getContentLengthLong();
        return length > Integer.MAX_VALUE ? -1 : (int) length;
    }

    @Override public ServletInputStream getInputStream() throws IOException {
        if (body == null) {
            return super.getInputStream();
        } else if (reader != null) {
            throw new IllegalStateException("getReader() was called");
        }
        in = in == null ? new In() : in;
        return in;
    }

    @Override public BufferedReader getReader() throws IOException {
        if (body == null) {
            return super.getReader();
        } else if (reader == null && in != null) {
            throw new IllegalStateException("getInputStream() was called");
        }
        if (reader == null) {
            String charset = getCharacterEncoding();
            reader = new BufferedReader(new InputStreamReader(new In(),
                    charset == null ? "ISO-8859-1" : charset));
        }
        return reader;
    }

    private boolean is(String type) {
        return getContentType() != null
                && getContentType().split(";", 2)[0].strip().equalsIgnoreCase(type);
    }

    /** The container cannot read it again, so that it is read here, in memory. */
    private void checkForm() {
        if (rest != null) {
            throw new IllegalStateException("once: the form is longer than max_request");
        }
    }

    @Override public Map<String, String[]> getParameterMap() {
        if (body == null) {
            return super.getParameterMap();
        } else if (parameters == null) {
            Map<String, List<String>> all = new LinkedHashMap<>();
            super.getParameterMap().forEach(
                    (name, values) -> all.put(name, new ArrayList<>(List.of(values))));
            if (getMethod().equals("POST") && is("application/x-www-form-urlencoded")) {
                checkForm();
                addForm(all);
            } else if (getMethod().equals("POST") && is("multipart/form-data")) {
                for (Piece p : pieces()) {
                    if (p.getSubmittedFileName() == null) {
                        add(all, p.getName(), p.text());
                    }
                }
            }
            parameters = new LinkedHashMap<>();
            all.forEach((name, list) -> parameters.put(name, list.toArray(new String[0])));
        }
        return Collections.unmodifiableMap(parameters);
    }

    private Charset charset() {
        ServletContext c = getServletContext();
        boolean isOld = c.getMajorVersion() * 100 + c.getMinorVersion() < 601;
        return getCharacterEncoding() != null ? Charset.forName(getCharacterEncoding())
                : isOld ? StandardCharsets.ISO_8859_1 : StandardCharsets.UTF_8;
    }

    private void addForm(Map<String, List<String>> all) {
        Charset charset = charset();
        String[] pairs = new String(body, StandardCharsets.ISO_8859_1).split("&", PIECES_MAX + 1);
        if (pairs.length > PIECES_MAX) {
            throw new IllegalStateException("once: the form has too many parameters");
        }
        for (String pair : pairs) {
            String[] two = pair.split("=", 2);
            try {
                if (!two[0].isEmpty()) {
                    add(all, decode(two[0], charset),
                            two.length < 2 ? "" : decode(two[1], charset));
                }
            } catch (IllegalArgumentException malformed) {
                continue; // as containers do
            }
        }
    }

    private static void add(Map<String, List<String>> all, String name, String value) {
        all.computeIfAbsent(name, n -> new ArrayList<>()).add(value);
    }

    private static String decode(String text, Charset charset) {
        return URLDecoder.decode(inCharset(text, charset), charset);
    }

    /** Bytes that are not escaped are of that charset, too. */
    static String inCharset(String bytes, Charset charset) {
        return new String(bytes.getBytes(StandardCharsets.ISO_8859_1), charset);
    }

    @Override public String[] getParameterValues(String name) {
        String[] values = getParameterMap().get(name);
        return values == null ? null : values.clone();
    }

    @Override public String getParameter(String name) {
        String[] values = getParameterMap().get(name);
        return values == null ? null : values[0];
    }

    @Override public Enumeration<String> getParameterNames() {
        return Collections.enumeration(getParameterMap().keySet());
    }

    private List<Piece> pieces() {
        checkForm();
        pieces = pieces == null ? Piece.read(getContentType(), body, charset()) : pieces;
        return pieces;
    }

    @Override public Collection<Part> getParts() throws IOException, ServletException {
        if (body == null) {
            return super.getParts();
        } else if (!is("multipart/form-data")) {
            throw new ServletException("no multipart/form-data");
        }
        return List.copyOf(pieces());
    }

    @Override public Part getPart(String name) throws IOException, ServletException {
        return getParts().stream().filter(p -> p.getName().equals(name)).findFirst()
                .orElse(null);
    }

    /** With the response that is held: without arguments it would be the container's. */
    @Override public AsyncContext startAsync() { return startAsync(this, response); }

    @Override public AsyncContext startAsync(ServletRequest q, ServletResponse r) {
        AsyncContext real = super.startAsync(q, r);
        return later == null ? real : later.start(real, q, r);
    }

    @Override public AsyncContext getAsyncContext() {
        AsyncContext real = super.getAsyncContext();
        return later == null ? real : later;
    }

    @Override public <T extends HttpUpgradeHandler> T upgrade(Class<T> type)
            throws IOException, ServletException {
        if (later != null) {
            throw new IllegalStateException("once: a guarded request is not upgraded");
        }
        return super.upgrade(type);
    }

    @Override public PushBuilder newPushBuilder() {
        return later != null ? null : super.newPushBuilder();
    }

    // The container adds the cookie of a session to its own response: never to another answer.

    private interface Change<T> {
        T make() throws ServletException;
    }

    private <T> T whileOpen(Change<T> change) throws ServletException {
        if (held == null) {
            return change.make();
        }
        held.lock.lock();
        try {
            if (held.told) {
                throw new IllegalStateException("once: the answer was told before");
            }
            return change.make();
        } finally {
            held.lock.unlock();
        }
    }

    @Override public HttpSession getSession() { return getSession(true); }

    @Override public HttpSession getSession(boolean create) {
        HttpSession old = super.getSession(false);
        try {
            return old != null || !create ? old : whileOpen(() -> super.getSession(true));
        } catch (ServletException never) {
            throw new IllegalStateException(never);
        }
    }

    @Override public String changeSessionId() {
        try {
            return whileOpen(super::changeSessionId);
        } catch (ServletException never) {
            throw new IllegalStateException(never);
        }
    }

    @Override public void login(String user, String password) throws ServletException {
        whileOpen(() -> {
            super.login(user, password);
            return null;
        });
    }

    // Tomcat sends the file that an attribute names after all filters, around what is held.

    private boolean isSendfile(String name) {
        return held != null && name.startsWith("org.apache.tomcat.sendfile.");
    }

    @Override public Object getAttribute(String name) {
        return isSendfile(name) ? null : super.getAttribute(name);
    }

    @Override public void setAttribute(String name, Object value) {
        if (isSendfile(name)) {
            throw new IllegalStateException("once: " + name + " would send around what is held;"
                    + " write the file to the response");
        }
        if (held != null && value instanceof Throwable wrong) {
            held.see(name, wrong);
        }
        super.setAttribute(name, value);
    }

    private final class In extends ServletInputStream {
        private final ByteArrayInputStream first = new ByteArrayInputStream(body);

        @Override public int read() throws IOException {
            int c = first.read();
            return c >= 0 || rest == null ? c : rest.read();
        }

        @Override public int read(byte[] to, int from, int n) throws IOException {
            return first.available() > 0 || rest == null ? first.read(to, from, n)
                    : rest.read(to, from, n);
        }

        @Override public boolean isFinished() {
            return first.available() == 0 && (rest == null || rest.isFinished());
        }

        @Override public boolean isReady() { return true; }

        /** What is not here yet is waited for, on a thread of the container. */
        @Override public void setReadListener(ReadListener listener) {
            getAsyncContext().start(() -> {
                try {
                    if (!isFinished()) {
                        listener.onDataAvailable();
                    }
                    if (isFinished()) {
                        listener.onAllDataRead();
                    }
                } catch (IOException | RuntimeException wrong) {
                    listener.onError(wrong);
                }
            });
        }
    }
}
