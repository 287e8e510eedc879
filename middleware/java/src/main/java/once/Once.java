// SPDX-License-Identifier: Apache-2.0
package once;

import jakarta.servlet.*;
import jakarta.servlet.http.*;
import java.io.*;
import java.lang.System.Logger.Level;
import java.net.*;
import java.net.http.HttpTimeoutException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.*;
import java.nio.file.*;
import java.security.SecureRandom;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.*;
import java.util.regex.*;

/**
 * Keeps the contract of Idempotency-Key for Java services, by `once serve`.
 *
 * <pre>
 * Filter filter = new Once(new Once.Options().scope(HttpServletRequest::getRemoteUser));
 * byte[] receipt = new Once.Calls(new Once.Options()).call("charge", "order-42", "12.50", work);
 * </pre>
 *
 * A request goes to the server before its servlet runs, and the servlet's answer before
 * the client gets it. The server decides; this file carries. It refuses to send a byte of
 * an answer before the server has said that it is durable.
 */
public final class Once implements Filter {
    private static final long BEGIN_MS = 1000; // how long a begin is repeated
    private static final long WAIT_MS = 620_000; // how long an answer may take: in_flight has 600 s
    private static final long LEASE_MS = 30_000; // of a call that gives none
    private static final int IDLE_MAX = 16; // connections that wait for work; busy ones have no bound
    private static final int BODY_MAX = 1 << 20; // of a request that is guarded
    private static final int HEADER_MAX = 8192; // of an answer of the server, without its message
    private static final int PART = 1 << 16;
    private static final int DEPTH_MAX = 8; // of what the server says
    private static final byte[] NONE = {};
    private static final String HELD = "once.Once"; // the attribute of a request that is guarded
    private static final SecureRandom RANDOM = new SecureRandom();
    private static final List<String> INTERNAL = List.of("Idempotency-Attempt",
            "Idempotency-Outcome", "Idempotency-Probe", "Idempotency-Record",
            "Idempotency-Recorded-Status", "Idempotency-Status", "Idempotent-Replayed");

    /** Where the server is, and what a request means. The members are named as the directives. */
    public static final class Options {
        private final Map<String, Function<HttpServletRequest, String>> computed = new LinkedHashMap<>();
        private Object route = Map.of();
        private String serve = System.getenv().getOrDefault("ONCE_SERVE", "unix:/run/once/serve.sock");
        private String tokenFile = System.getenv("ONCE_SERVE_TOKEN_FILE");
        private boolean bypass;
        private System.Logger log = System.getLogger("once");

        /** Who has authenticated, or "": 401. Callers of one scope can get each other's answers. */
        public Options scope(Function<HttpServletRequest, String> of) { return compute("scope", of); }

        /** In place of the header; null: it counts. */
        public Options key(Function<HttpServletRequest, String> of) { return compute("key", of); }

        /** In place of what is compared. */
        public Options fingerprint(Function<HttpServletRequest, String> of) { return compute("fingerprint", of); }

        /** What operators see. */
        public Options label(Function<HttpServletRequest, String> of) { return compute("label", of); }

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

        /** Requests pass while the server is away; only with lost takeover and store_failure bypass. */
        public Options bypass(boolean on) {
            bypass = on;
            return this;
        }

        public Options log(System.Logger to) {
            log = to;
            return this;
        }
    }

    /** What the client gets; `own`: it is the servlet's. */
    private record Answer(int status, List<?> lines, byte[] body, boolean own) {
        static Answer of(Told t) {
            return new Answer((int) t.number("status"), t.lines(), t.body, false);
        }

        static Answer problem(String code, int status, String title, String detail, String state,
                String marker) {
            Map<String, Object> body = new LinkedHashMap<>();
            body.put("type", "urn:problem-type:once:" + code);
            body.put("title", title);
            body.put("status", status);
            body.put("detail", detail);
            body.put("code", code);
            body.put("retryable", true);
            body.put("safe_new_key", false);
            body.put("state", state);
            body.put("error", Map.of("type", "api_error", "code", code, "message", detail));
            List<List<String>> lines = new ArrayList<>(List.of(
                    List.of("Content-Type", "application/problem+json"),
                    List.of("Cache-Control", "no-store"), List.of("Idempotency-Status", marker)));
            if (status == 503) {
                lines.add(List.of("Retry-After", "1"));
            }
            return new Answer(status, lines, Json.write(body).getBytes(StandardCharsets.UTF_8), false);
        }
    }

    private static final Answer UNAVAILABLE = Answer.problem("store-unavailable", 503,
            "The idempotency store is unavailable",
            "Nothing was done now. Send the same key again after the time in Retry-After.",
            "any", "unavailable");
    private static final Answer UNKNOWN = Answer.problem("outcome-unknown", 502,
            "The outcome of this request is not known",
            "It may have taken effect. Do not use a new key: find out first.",
            "indeterminate", "indeterminate");
    private static final Answer WRONG = new Answer(500, List.of(), NONE, false);

    // ---- The server -----------------------------------------------------------------

    /** What the server said. */
    private record Told(int code, Map<?, ?> head, byte[] body) {
        boolean does(String what) {
            return code == 200 && what.equals(head.get("do"));
        }

        String text(String name) {
            return (String) head.get(name);
        }

        long number(String name) {
            return head.get(name) == null ? 0 : ((Number) head.get(name)).longValue();
        }

        List<?> lines() {
            return head.get("headers") == null ? List.of() : (List<?>) head.get("headers");
        }
    }

    /** One call at a time on a connection. */
    private static final class Server {
        private static final Pattern LENGTH = Pattern.compile("\r\ncontent-length: *(\\d+)",
                Pattern.CASE_INSENSITIVE);
        private static final ScheduledThreadPoolExecutor CLOCK = new ScheduledThreadPoolExecutor(1,
                work -> {
                    Thread thread = new Thread(work, "once-clock");
                    thread.setDaemon(true);
                    return thread;
                });

        static {
            CLOCK.setRemoveOnCancelPolicy(true);
            CLOCK.setKeepAliveTime(1, TimeUnit.SECONDS);
            CLOCK.allowCoreThreadTimeOut(true); // it keeps no application loaded
        }

        private final SocketAddress where;
        private final String bearer;
        private final System.Logger log;
        private final LinkedBlockingDeque<SocketChannel> idle = new LinkedBlockingDeque<>(IDLE_MAX);

        Server(Options o) {
            log = o.log;
            if (o.serve.startsWith("unix:")) {
                where = UnixDomainSocketAddress.of(o.serve.substring(5));
            } else {
                URI url = URI.create(o.serve);
                where = new InetSocketAddress(url.getHost(), url.getPort() < 0 ? 80 : url.getPort());
            }
            try {
                bearer = o.tokenFile == null ? "" : "Authorization: Bearer "
                        + Files.readString(Path.of(o.tokenFile)).lines().findFirst().orElse("").trim()
                        + "\r\n";
            } catch (IOException wrong) {
                throw new IllegalArgumentException("tokenFile cannot be read", wrong);
            }
        }

        private Told ask(String path, Map<String, ?> what, byte[] body) throws IOException {
            byte[] line = (Json.write(what) + "\n").getBytes(StandardCharsets.UTF_8);
            String start = "POST /v1/" + path + " HTTP/1.1\r\nHost: once\r\n" + bearer
                    + "Content-Type: application/vnd.once\r\nContent-Length: "
                    + (line.length + (long) body.length) + "\r\n\r\n";
            SocketChannel free = idle.pollFirst();
            SocketChannel channel = free != null ? free : SocketChannel.open(where);
            Future<?> late = CLOCK.schedule(() -> close(channel), WAIT_MS, TimeUnit.MILLISECONDS);
            boolean whole = false;
            try {
                if (free == null && where instanceof InetSocketAddress) {
                    channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
                }
                write(channel, start.getBytes(StandardCharsets.ISO_8859_1));
                write(channel, line);
                write(channel, body);
                Told told = read(channel);
                whole = true;
                return told;
            } finally {
                late.cancel(false);
                if (!whole || !idle.offerFirst(channel)) {
                    close(channel);
                }
                if (!whole) {
                    closeIdle(); // they have ended, too, if the server was restarted
                }
            }
        }

        void closeIdle() {
            for (SocketChannel c = idle.poll(); c != null; c = idle.poll()) {
                close(c);
            }
        }

        private static void close(SocketChannel channel) {
            try {
                channel.close();
            } catch (IOException gone) {
                // nothing more can be done with it
            }
        }

        /** In parts: for each thread Java keeps memory outside the heap, as large as the largest. */
        private static void write(SocketChannel channel, byte[] data) throws IOException {
            for (int at = 0; at < data.length;) {
                at += channel.write(ByteBuffer.wrap(data, at, Math.min(PART, data.length - at)));
            }
        }

        private static Told read(SocketChannel channel) throws IOException {
            ByteBuffer in = ByteBuffer.allocate(HEADER_MAX);
            String text;
            int end;
            do {
                if (!in.hasRemaining() || channel.read(in) < 0) {
                    throw new EOFException("the connection ended");
                }
                text = new String(in.array(), 0, in.position(), StandardCharsets.ISO_8859_1);
                end = text.indexOf("\r\n\r\n");
            } while (end < 0);
            Matcher length = LENGTH.matcher(text).region(0, end);
            if (!length.find() || in.position() - end - 4 > Integer.parseInt(length.group(1))) {
                throw new IOException("no Content-Length, or a wrong one");
            }
            byte[] data = new byte[Integer.parseInt(length.group(1))];
            int at = in.position() - end - 4;
            System.arraycopy(in.array(), end + 4, data, 0, at);
            while (at < data.length) {
                int n = channel.read(ByteBuffer.wrap(data, at, Math.min(PART, data.length - at)));
                if (n < 0) {
                    throw new EOFException("the connection ended");
                }
                at += n;
            }
            int feed = 0;
            while (data[feed] != '\n') {
                feed++;
            }
            return new Told(Integer.parseInt(text.substring(9, 12)),
                    Json.read(new String(data, 0, feed, StandardCharsets.UTF_8)),
                    Arrays.copyOfRange(data, feed + 1, data.length));
        }

        /** Every call may be repeated. Null: the server is away. An interrupt is kept for later,
         *  since it would close the connection of this call and of the next. */
        Told repeat(String path, Map<String, Object> what, byte[] body, long ms) {
            long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(ms);
            boolean interrupted = false;
            try {
                for (long pause = 50;; pause = Math.min(2 * pause, 1000)) {
                    interrupted |= Thread.interrupted();
                    try {
                        Told told = ask(path, what, body);
                        if (told.code != 503) {
                            return told;
                        }
                    } catch (IOException | RuntimeException wrong) {
                        log.log(Level.WARNING, "once: " + path + ": " + wrong);
                    }
                    interrupted |= Thread.interrupted();
                    if (System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(pause) - until > 0) {
                        return null;
                    }
                    try {
                        Thread.sleep(pause);
                    } catch (InterruptedException later) {
                        interrupted = true;
                    }
                    if (path.endsWith("begin")) {
                        what.put("again", true);
                    }
                }
            } finally {
                if (interrupted) {
                    Thread.currentThread().interrupt();
                }
            }
        }

        static String newId() {
            byte[] id = new byte[16];
            RANDOM.nextBytes(id);
            return HexFormat.of().formatHex(id);
        }

        void abandon(String id) {
            repeat("abandon", new HashMap<>(Map.of("id", id)), NONE, 0);
        }
    }

    /** The line before a message's body. Java has no JSON of its own. */
    private static final class Json {
        private static final Pattern NUMBER = Pattern.compile("-?(0|[1-9]\\d*)(\\.\\d+)?([eE][+-]?\\d+)?");
        private final String in;
        private int at;

        private Json(String in) {
            this.in = in;
        }

        static String write(Object value) {
            StringBuilder out = new StringBuilder(256);
            write(out, value);
            return out.toString();
        }

        private static void write(StringBuilder out, Object value) {
            if (value instanceof Map<?, ?> map) {
                String comma = "{";
                for (Map.Entry<?, ?> e : map.entrySet()) {
                    write(out.append(comma), e.getKey());
                    write(out.append(':'), e.getValue());
                    comma = ",";
                }
                out.append(map.isEmpty() ? "{}" : "}");
            } else if (value instanceof Collection<?> list) {
                String comma = "[";
                for (Object each : list) {
                    write(out.append(comma), each);
                    comma = ",";
                }
                out.append(list.isEmpty() ? "[]" : "]");
            } else if (value instanceof CharSequence text) {
                out.append('"');
                text.chars().forEach(c -> write(out, (char) c));
                out.append('"');
            } else { // a number, true, false or null; the server refuses all else
                out.append(value);
            }
        }

        /** Half a pair as it is, and not as "?": two scopes would be one. The server refuses it. */
        private static void write(StringBuilder out, char c) {
            if (c < ' ' || Character.isSurrogate(c)) {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c == '"' || c == '\\' ? "\\" : "").append(c);
            }
        }

        static Map<?, ?> read(String text) {
            Json json = new Json(text);
            Object value = json.value(0);
            json.skip();
            if (json.at < text.length()) {
                throw new IllegalArgumentException("bad JSON");
            }
            return (Map<?, ?>) value;
        }

        private void skip() {
            while (at < in.length() && " \t\r\n".indexOf(in.charAt(at)) >= 0) {
                at++;
            }
        }

        private boolean takes(char c) {
            skip();
            boolean is = at < in.length() && in.charAt(at) == c;
            at += is ? 1 : 0;
            return is;
        }

        private void expect(char c) {
            if (!takes(c)) {
                throw new IllegalArgumentException("bad JSON");
            }
        }

        private Object value(int depth) {
            if (depth > DEPTH_MAX) {
                throw new IllegalArgumentException("JSON is too deep");
            } else if (takes('"')) {
                return text();
            } else if (takes('{')) {
                return object(depth);
            } else if (takes('[')) {
                return list(depth);
            }
            for (Object word : new Object[] {true, false, null}) {
                if (in.startsWith(String.valueOf(word), at)) {
                    at += String.valueOf(word).length();
                    return word;
                }
            }
            Matcher number = NUMBER.matcher(in).region(at, in.length());
            if (!number.lookingAt()) {
                throw new IllegalArgumentException("bad JSON");
            }
            at = number.end();
            return number.group(2) == null && number.group(3) == null
                    ? (Number) Long.valueOf(number.group()) : (Number) Double.valueOf(number.group());
        }

        private Map<String, Object> object(int depth) {
            Map<String, Object> out = new LinkedHashMap<>();
            if (takes('}')) {
                return out;
            }
            do {
                expect('"');
                String name = text();
                expect(':');
                out.put(name, value(depth + 1));
            } while (takes(','));
            expect('}');
            return out;
        }

        private List<Object> list(int depth) {
            List<Object> out = new ArrayList<>();
            if (takes(']')) {
                return out;
            }
            do {
                out.add(value(depth + 1));
            } while (takes(','));
            expect(']');
            return out;
        }

        private String text() {
            StringBuilder out = new StringBuilder();
            for (char c = in.charAt(at++); c != '"'; c = in.charAt(at++)) {
                out.append(c != '\\' ? c : escaped(in.charAt(at++)));
            }
            return out.toString();
        }

        private char escaped(char c) {
            int which = "\"\\/bfnrt".indexOf(c);
            if (c == 'u') {
                at += 4;
                return (char) HexFormat.fromHexDigits(in, at - 4, at);
            } else if (which < 0) {
                throw new IllegalArgumentException("bad JSON");
            }
            return "\"\\/\b\f\n\r\t".charAt(which);
        }
    }

    // ---- One request ------------------------------------------------------------------

    private record Exchange(Server server, Object route, Told run) {
        void log(Level level, String text, Throwable wrong) {
            server.log.log(level, "once: " + text, wrong);
        }

        private Told tell(String path, Map<String, Object> what, byte[] body) {
            what.put("token", run.text("token"));
            what.put("route", route);
            Told told = server.repeat(path, what, body, run.number("lease_ms"));
            if (told != null && told.code != 200) {
                log(Level.ERROR, path + ": " + told.text("text"), null);
            }
            return told;
        }

        /** What the client gets. Body null: a stream, which is recorded as not kept. */
        Answer end(int status, List<?> lines, byte[] body) {
            Map<String, Object> what = new HashMap<>(Map.of("status", status, "headers", lines));
            if (body == null) {
                what.put("stream", true);
            }
            Told told = tell("end", what, body == null ? NONE : body);
            if (told != null && told.code == 422) { // it cannot be carried
                return broken(502);
            }
            if (told != null && told.does("own")) {
                return new Answer((int) told.number("status"), told.lines(),
                        body == null ? NONE : body, true);
            }
            return told != null && told.does("send") ? Answer.of(told) : UNKNOWN;
        }

        /** The servlet ended without an answer: what it did is not known. Null: nobody guards it
         *  (a dry run), so it breaks as it would without Once. */
        Answer broken(int status) {
            Told told = tell("broken", new HashMap<>(Map.of("status", status)), NONE);
            if (told == null || told.code != 200) {
                return UNKNOWN;
            }
            return told.does("send") ? Answer.of(told) : null;
        }
    }

    /** Of the directives: 1048576, "1024k", "1m". */
    private static int size(Object value) {
        Matcher m = Pattern.compile("(\\d+)([kmg]?)").matcher(String.valueOf(value).toLowerCase(Locale.ROOT));
        if (!m.matches()) {
            throw new IllegalArgumentException("max_request is no size");
        }
        return (int) Math.min(Integer.MAX_VALUE - 16L, // the most of an array
                Long.parseLong(m.group(1)) << List.of("", "k", "m", "g").indexOf(m.group(2)) * 10);
    }

    private static boolean isTimeout(Throwable wrong) {
        Throwable t = wrong;
        for (int i = 0; t != null && i < 32; i++, t = t.getCause()) {
            if (t instanceof SocketTimeoutException || t instanceof TimeoutException
                    || t instanceof HttpTimeoutException) {
                return true;
            }
        }
        return false;
    }

    // ---- The response, held --------------------------------------------------------------

    /** Each line of an answer as a pair. Content-Type stands apart in some containers. */
    private static List<List<String>> linesOf(HttpServletResponse from) {
        List<List<String>> out = new ArrayList<>();
        Set<String> seen = new HashSet<>(Set.of("content-type", "content-length"));
        for (String name : from.getHeaderNames()) {
            if (seen.add(name.toLowerCase(Locale.ROOT))) {
                from.getHeaders(name).forEach(v -> out.add(List.of(name, clean(v))));
            }
        }
        if (from.getContentType() != null) {
            out.add(List.of("Content-Type", clean(from.getContentType())));
        }
        return out;
    }

    /** A value as containers send it. A name that cannot be is refused by the server. */
    private static String clean(String text) {
        StringBuilder out = new StringBuilder(text);
        for (int i = 0; i < out.length(); i++) {
            char c = out.charAt(i);
            if (c > 255 || c < ' ' && c != '\t' || c == 127) {
                out.setCharAt(i, c > 255 ? '?' : ' ');
            }
        }
        return out.toString();
    }

    private static void put(HttpServletResponse to, List<?> lines) {
        Set<String> seen = new HashSet<>(Set.of("content-length"));
        for (Object each : lines) {
            String name = (String) ((List<?>) each).get(0);
            String value = (String) ((List<?>) each).get(1);
            if (seen.add(name.toLowerCase(Locale.ROOT))) {
                to.setHeader(name, value);
            } else if (!name.equalsIgnoreCase("Content-Length")) {
                to.addHeader(name, value);
            }
        }
    }

    private static void send(HttpServletResponse to, Answer a) throws IOException {
        put(to, a.lines);
        to.setStatus(a.status);
        if (a.status != 204 && a.status != 304) {
            to.setContentLengthLong(a.body.length);
            to.getOutputStream().write(a.body);
        }
    }

    /** Keeps what the servlet answers until the server has recorded it. Header lines are kept by
     *  the container's response, with 502 as status: what leaves by no way of ours is unknown. */
    private static final class Held extends HttpServletResponseWrapper {
        private final Exchange x;
        private final HttpServletResponse raw;
        private final List<List<String>> outer; // lines of filters that stand before
        private final ByteArrayOutputStream body = new ByteArrayOutputStream();
        private final AtomicBoolean told = new AtomicBoolean(); // the server is asked, or has said
        private final Out out = new Out();
        private Async async;
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
            outer = linesOf(raw);
            raw.setStatus(502);
        }

        private List<List<String>> lines() {
            if (writer != null && body.size() > 0) {
                raw.setCharacterEncoding(charset); // a later setContentType() changes no writer
            }
            List<List<String>> lines = linesOf(raw);
            lines.removeAll(outer);
            return lines;
        }

        /** Without memory, say, an answer may be recorded or not. */
        private Answer ask(Supplier<Answer> server) {
            try {
                return server.get();
            } catch (RuntimeException | Error wrong) {
                x.log(Level.ERROR, "the server cannot be asked", wrong);
                return UNKNOWN;
            }
        }

        /** What the servlet has set is in the answer, or is not sent. */
        private void answer(Answer a) throws IOException {
            raw.reset();
            put(raw, outer);
            if (!stream) {
                send(raw, a);
                return;
            }
            put(raw, a.lines);
            raw.setStatus(a.status);
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
            if (told.compareAndSet(false, true)) {
                Answer a = ask(() -> x.end(status, lines(), null));
                stream = a.own;
                answer(a);
                raw.flushBuffer();
            }
            if (!stream) {
                throw new IOException("once: another answer was sent");
            }
        }

        private void add(byte[] data, int from, int n) throws IOException {
            if (stream) {
                raw.getOutputStream().write(data, from, n);
            } else if (told.get()) {
                throw new IOException("once: another answer was sent");
            } else if (!closed && n > 0) {
                body.write(data, from, n);
                if (flushed || body.size() > x.run.number("max_response") || isStream()) {
                    begin();
                }
            }
        }

        /** The servlet has returned, or completed. */
        void finish() throws IOException {
            if (told.compareAndSet(false, true)) {
                answer(ask(() -> x.end(status, lines(), body.toByteArray())));
            }
        }

        /** The servlet has not returned. False: it breaks as it would without Once, as a stream
         *  does whose client has a head. */
        boolean broke(Throwable wrong, int code) throws IOException {
            x.log(Level.ERROR, "the servlet broke", wrong);
            if (!told.compareAndSet(false, true)) {
                return !stream;
            }
            Answer a = ask(() -> x.broken(code));
            if (a != null) {
                answer(a);
            }
            return a != null;
        }

        private void check() {
            if (isCommitted()) {
                throw new IllegalStateException("the response is committed");
            }
        }

        @Override public boolean isCommitted() { return closed || told.get(); }

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
                async.start(() -> {
                    try {
                        listener.onWritePossible();
                    } catch (IOException | RuntimeException wrong) {
                        listener.onError(wrong);
                    }
                });
            }
        }
    }

    // ---- What a servlet does later ----------------------------------------------------------

    /** An asynchronous answer is told before the container ends it: when it calls onComplete()
     *  the response is gone. A servlet's listeners are kept here, since theirs are events of this
     *  context; they may answer a time-out themselves. */
    private static final class Async implements AsyncContext, AsyncListener {
        private record Entry(AsyncListener listener, ServletRequest q, ServletResponse r) { }

        private interface Event {
            void fire(AsyncListener to, AsyncEvent event) throws IOException;
        }

        private final Held held;
        private final List<Entry> listeners = new CopyOnWriteArrayList<>();
        private volatile AsyncContext real;
        private volatile boolean started; // in the dispatch that runs now
        private volatile boolean ended; // completed or dispatched

        Async(Held held) { this.held = held; }

        AsyncContext start(AsyncContext real) {
            this.real = real;
            ended = false;
            started = true;
            real.addListener(this);
            return this;
        }

        private void fire(AsyncEvent event, Event what) {
            for (Entry e : listeners) {
                try {
                    what.fire(e.listener, new AsyncEvent(this, e.q, e.r, event.getThrowable()));
                } catch (IOException | RuntimeException wrong) {
                    held.x.log(Level.WARNING, "a listener broke", wrong);
                }
            }
        }

        private void broke(Throwable wrong, int code) throws IOException {
            if (!ended && held.broke(wrong, code)) {
                ended = true;
                real.complete();
            }
        }

        @Override public void onTimeout(AsyncEvent event) throws IOException {
            fire(event, AsyncListener::onTimeout);
            broke(new TimeoutException("the asynchronous answer did not come"), 504);
        }

        @Override public void onError(AsyncEvent event) throws IOException {
            fire(event, AsyncListener::onError);
            broke(event.getThrowable(), isTimeout(event.getThrowable()) ? 504 : 502);
        }

        /** The next start has none of the listeners, unless they add themselves now. */
        @Override public void onStartAsync(AsyncEvent event) {
            List<Entry> old = List.copyOf(listeners);
            listeners.clear();
            for (Entry e : old) {
                try {
                    e.listener.onStartAsync(new AsyncEvent(this, e.q, e.r));
                } catch (IOException | RuntimeException wrong) {
                    held.x.log(Level.WARNING, "a listener broke", wrong);
                }
            }
        }

        @Override public void onComplete(AsyncEvent event) {
            if (held.told.compareAndSet(false, true)) {
                held.x.log(Level.ERROR, "nobody saw the answer: is the filter mapped for ASYNC?",
                        null);
                held.ask(() -> held.x.broken(502));
            }
            fire(event, AsyncListener::onComplete);
        }

        @Override public void complete() {
            ended = true;
            try {
                held.finish();
            } catch (IOException gone) {
                held.x.log(Level.DEBUG, "the client has left", gone);
            } finally {
                real.complete();
            }
        }

        @Override public void dispatch() {
            ended = true;
            real.dispatch();
        }

        @Override public void dispatch(String path) {
            ended = true;
            real.dispatch(path);
        }

        @Override public void dispatch(ServletContext context, String path) {
            ended = true;
            real.dispatch(context, path);
        }

        @Override public void addListener(AsyncListener l) { addListener(l, null, null); }

        @Override public void addListener(AsyncListener l, ServletRequest q, ServletResponse r) {
            listeners.add(new Entry(l, q, r));
        }

        @Override public <T extends AsyncListener> T createListener(Class<T> type)
                throws ServletException {
            return real.createListener(type);
        }

        @Override public void start(Runnable work) {
            real.start(() -> {
                try {
                    work.run();
                } catch (RuntimeException | Error wrong) {
                    try {
                        broke(wrong, isTimeout(wrong) ? 504 : 502);
                    } catch (IOException gone) {
                        held.x.log(Level.DEBUG, "the client has left", gone);
                    }
                    throw wrong;
                }
            });
        }

        @Override public ServletRequest getRequest() { return real.getRequest(); }

        @Override public ServletResponse getResponse() { return real.getResponse(); }

        @Override public boolean hasOriginalRequestAndResponse() {
            return real.hasOriginalRequestAndResponse();
        }

        @Override public void setTimeout(long ms) { real.setTimeout(ms); }

        @Override public long getTimeout() { return real.getTimeout(); }
    }

    // ---- The request, with its body again ---------------------------------------------------

    private static final class Given extends HttpServletRequestWrapper {
        private static final Pattern PARAMETER = // of Content-Type and Content-Disposition
                Pattern.compile(";\\s*([^\\s=;]+)\\s*=\\s*(?:\"([^\"]*)\"|([^;\\s]*))");
        private final byte[] body;
        private final ServletInputStream rest; // of a body that is too long to be guarded, or null
        private final ServletResponse response;
        private final Async async; // null: it is not guarded
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
            INTERNAL.forEach(name -> lines.put(name, null));
            async = r instanceof Held held ? new Async(held) : null;
            if (r instanceof Held held) {
                held.async = async;
                lines.put("Idempotency-Attempt", String.valueOf(held.x.run.number("attempt")));
                lines.put("Idempotency-Record", held.x.run.text("record"));
                if (held.x.run.text("key") != null) {
                    lines.put("Idempotency-Key", held.x.run.text("key"));
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
            return rest == null && body.length > 0 ? body.length : super.getContentLengthLong();
        }

        @Override public int getContentLength() {
            long length = getContentLengthLong();
            return length > Integer.MAX_VALUE ? -1 : (int) length;
        }

        @Override public ServletInputStream getInputStream() {
            if (reader != null) {
                throw new IllegalStateException("getReader() was called");
            }
            in = in == null ? new In() : in;
            return in;
        }

        @Override public BufferedReader getReader() throws IOException {
            if (reader == null && in != null) {
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
            if (parameters == null) {
                Map<String, String[]> all = new LinkedHashMap<>(super.getParameterMap());
                if (getMethod().equals("POST") && is("application/x-www-form-urlencoded")) {
                    checkForm();
                    addForm(all);
                } else if (getMethod().equals("POST") && is("multipart/form-data")) {
                    for (Piece p : pieces()) {
                        if (p.getSubmittedFileName() == null) {
                            all.merge(p.getName(), new String[] {new String(p.data, charset())},
                                    Given::joined);
                        }
                    }
                }
                parameters = Collections.unmodifiableMap(all);
            }
            return parameters;
        }

        private Charset charset() {
            ServletContext c = getServletContext();
            boolean isOld = c.getMajorVersion() * 100 + c.getMinorVersion() < 601;
            return getCharacterEncoding() != null ? Charset.forName(getCharacterEncoding())
                    : isOld ? StandardCharsets.ISO_8859_1 : StandardCharsets.UTF_8;
        }

        private void addForm(Map<String, String[]> all) {
            Charset charset = charset();
            for (String pair : new String(body, StandardCharsets.ISO_8859_1).split("&")) {
                String[] two = pair.split("=", 2);
                if (two[0].isEmpty()) {
                    continue;
                }
                try {
                    all.merge(decode(two[0], charset), new String[] {
                        two.length < 2 ? "" : decode(two[1], charset)}, Given::joined);
                } catch (IllegalArgumentException malformed) {
                    continue; // as containers do
                }
            }
        }

        private static String decode(String text, Charset charset) {
            return URLDecoder.decode(inCharset(text, charset), charset);
        }

        /** Bytes that are not escaped are of that charset, too. */
        private static String inCharset(String bytes, Charset charset) {
            return new String(bytes.getBytes(StandardCharsets.ISO_8859_1), charset);
        }

        private static String[] joined(String[] a, String[] b) {
            String[] out = Arrays.copyOf(a, a.length + b.length);
            System.arraycopy(b, 0, out, a.length, b.length);
            return out;
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

        private static String parameter(String line, String name) {
            Matcher m = PARAMETER.matcher(line == null ? "" : line);
            while (m.find()) {
                if (m.group(1).equalsIgnoreCase(name)) {
                    return m.group(2) != null ? m.group(2) : m.group(3);
                }
            }
            return null;
        }

        private List<Piece> pieces() {
            checkForm();
            if (pieces == null) {
                pieces = new ArrayList<>();
                String mark = "\r\n--" + parameter(getContentType(), "boundary");
                String text = "\r\n" + new String(body, StandardCharsets.ISO_8859_1);
                int at = text.indexOf(mark);
                while (at >= 0 && !text.startsWith("--", at + mark.length())) {
                    int head = text.indexOf("\r\n", at + mark.length());
                    int data = text.indexOf("\r\n\r\n", head);
                    at = text.indexOf(mark, head);
                    if (head < 0 || data < 0 || at < data) {
                        throw new IllegalStateException("once: a part is not whole");
                    }
                    // Without data the mark stands right after the lines of the part.
                    pieces.add(new Piece(text.substring(head, data).split("\r\n"),
                            text.substring(Math.min(data + 4, at), at)));
                }
            }
            return pieces;
        }

        @Override public Collection<Part> getParts() throws ServletException {
            if (!is("multipart/form-data")) {
                throw new ServletException("no multipart/form-data");
            }
            return List.copyOf(pieces());
        }

        @Override public Part getPart(String name) throws ServletException {
            return getParts().stream().filter(p -> p.getName().equals(name)).findFirst()
                    .orElse(null);
        }

        private final class Piece implements Part {
            private final Map<String, List<String>> lines =
                    new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
            private final byte[] data;

            Piece(String[] head, String bytes) {
                for (String line : head) {
                    String[] two = inCharset(line, charset()).split(":", 2);
                    if (two.length == 2) {
                        lines.computeIfAbsent(two[0].strip(), n -> new ArrayList<>())
                                .add(two[1].strip());
                    }
                }
                data = bytes.getBytes(StandardCharsets.ISO_8859_1);
            }

            private String of(String name) {
                return parameter(getHeader("Content-Disposition"), name);
            }

            @Override public String getName() { return of("name"); }

            @Override public String getSubmittedFileName() { return of("filename"); }

            @Override public String getContentType() { return getHeader("Content-Type"); }

            @Override public long getSize() { return data.length; }

            @Override public InputStream getInputStream() { return new ByteArrayInputStream(data); }

            @Override public void write(String file) throws IOException {
                File folder = (File) getServletContext().getAttribute(ServletContext.TEMPDIR);
                Files.write(folder == null ? Path.of(file) : folder.toPath().resolve(file), data);
            }

            @Override public void delete() { } // it is in memory

            @Override public String getHeader(String name) {
                return lines.containsKey(name) ? lines.get(name).get(0) : null;
            }

            @Override public Collection<String> getHeaders(String name) {
                return lines.getOrDefault(name, List.of());
            }

            @Override public Collection<String> getHeaderNames() { return lines.keySet(); }
        }

        /** With the response that is held: without arguments it would be the container's. */
        @Override public AsyncContext startAsync() { return startAsync(this, response); }

        @Override public AsyncContext startAsync(ServletRequest q, ServletResponse r) {
            AsyncContext real = super.startAsync(q, r);
            return async == null ? real : async.start(real);
        }

        @Override public AsyncContext getAsyncContext() {
            AsyncContext real = super.getAsyncContext();
            return async == null ? real : async;
        }

        @Override public <T extends HttpUpgradeHandler> T upgrade(Class<T> type)
                throws IOException, ServletException {
            if (async != null) {
                throw new IllegalStateException("once: a guarded request is not upgraded");
            }
            return super.upgrade(type);
        }

        @Override public PushBuilder newPushBuilder() {
            return async != null ? null : super.newPushBuilder();
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

    // ---- The filter -------------------------------------------------------------------------

    private final Server server;
    private final Map<String, Function<HttpServletRequest, String>> computed;
    private final Object route;
    private final boolean bypass;
    private final int most;
    private final String asked = HELD + "@" + Integer.toHexString(System.identityHashCode(this));

    public Once(Options o) {
        Map<?, ?> given = o.route instanceof Map<?, ?> members ? members : Map.of();
        if (o.bypass && !("takeover".equals(given.get("lost"))
                && "bypass".equals(given.get("store_failure")))) {
            throw new IllegalArgumentException("bypass needs lost=takeover and store_failure=bypass");
        }
        if (!o.computed.containsKey("scope") && o.route instanceof Map
                && !"off".equals(given.get("scope"))) {
            throw new IllegalArgumentException("scope: who is the caller? Or \"scope\": \"off\"");
        }
        server = new Server(o);
        computed = Map.copyOf(o.computed);
        route = o.route instanceof Map ? Map.copyOf((Map<?, ?>) o.route) : o.route;
        bypass = o.bypass;
        most = given.containsKey("max_request") ? size(given.get("max_request")) : BODY_MAX;
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

    private void guard(HttpServletRequest q, HttpServletResponse r, FilterChain chain)
            throws IOException, ServletException {
        ServletInputStream in = q.getInputStream();
        boolean taken = q.getHeader("Transfer-Encoding") != null && in.isFinished();
        byte[] body = in.readNBytes(most + 1); // one more than is allowed is a 413
        taken |= body.length < Math.min(q.getContentLengthLong(), most);
        if (taken && !computed.containsKey("fingerprint")) {
            // Without its body a request would be the same as others of its key.
            server.log.log(Level.ERROR, "once: the body was read before");
            send(r, WRONG);
            return;
        }
        ServletInputStream rest = body.length > most ? in : null;
        String id = Server.newId();
        Told told = server.repeat("begin", head(id, q, new Given(q, body, rest, r)), body, BEGIN_MS);
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
            send(r, Answer.of(told));
        } else if (told == null || told.code == 401) {
            send(r, UNAVAILABLE);
        } else { // a wrong program; or a route with a name takes more than was read
            server.log.log(Level.ERROR, "once: begin: " + (rest != null
                    ? "the body is longer than this filter takes" : told.text("text")));
            send(r, WRONG);
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
        held.async.started = false;
        try {
            chain.doFilter(q, r);
        } catch (Throwable wrong) {
            if (!held.broke(wrong, isTimeout(wrong) ? 504 : 502)) {
                throw wrong;
            }
            if (held.async.started && !held.async.ended) {
                held.async.ended = true;
                held.async.real.complete();
            }
            return;
        }
        if (!held.async.started && !q.isAsyncStarted()) {
            held.finish();
        }
    }

    // ---- Functions in place of requests -------------------------------------------------------

    /** Each runs at most once for a group and a key, and every repeat gets its result. */
    public static final class Calls {
        private final Server server;

        /** Of the options only where the server is, and the log. */
        public Calls(Options o) { server = new Server(o); }

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
            Map<String, Object> what = new HashMap<>(more);
            String id = Server.newId();
            what.putAll(Map.of("id", id, "group", group, "key", key, "fingerprint", fingerprint));
            Told told = server.repeat("call/begin", what, NONE, BEGIN_MS);
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
                result = work.call();
            } catch (NotApplied nothing) {
                tell("abandon", what, NONE);
                throw nothing;
            } catch (Throwable wrong) {
                tell("broken", what, NONE);
                throw wrong;
            }
            what.put("kind", "success");
            told = tell("call/end", what, result == null ? NONE : result);
            if (told != null && told.code == 422) { // it cannot be carried
                tell("broken", what, NONE);
            }
            if (told == null || told.code != 200) {
                throw new NoResult("indeterminate", null);
            }
            return told.does("none") ? result : result(told);
        }

        private Told tell(String path, Map<String, Object> what, byte[] body) {
            Object lease = what.get("lease_ms");
            Told told = server.repeat(path, what, body,
                    lease == null ? LEASE_MS : ((Number) lease).longValue());
            if (told == null || told.code != 200) {
                server.log.log(Level.ERROR, "once: " + path + ": "
                        + (told == null ? "no answer" : told.text("text")));
            }
            return told;
        }

        private static byte[] result(Told told) throws NoResult {
            if (told != null && told.code == 422) {
                throw new IllegalArgumentException(told.text("text"));
            } else if (told == null || told.code != 200) {
                throw new NoResult("unavailable", null);
            } else if (!told.does("replay")) {
                throw new NoResult(told.text("do"), told);
            } else if (!"success".equals(told.text("kind"))) {
                throw new NoResult("failure", told);
            }
            return told.body;
        }
    }

    /** Thrown by the work of a call that has done nothing: the key is free. */
    public static class NotApplied extends RuntimeException {
        private static final long serialVersionUID = 1;

        public NotApplied(String text, Throwable cause) { super(text, cause); }
    }

    /** A call has no result to give. */
    public static final class NoResult extends Exception {
        private static final long serialVersionUID = 1;
        /** in-flight, mismatch, indeterminate, unstored and failure as the server says them;
         *  unavailable: nothing was done. */
        public final String state;
        /** Of in-flight: when to ask again. */
        public final long retryAfterMs;
        /** Of a failure that a program in another language has recorded: its code and its result. */
        public final int code;
        public final byte[] body;

        private NoResult(String state, Told told) {
            super("once: " + state);
            this.state = state;
            retryAfterMs = told == null ? 0 : told.number("retry_after_ms");
            code = told == null ? 0 : (int) told.number("code");
            body = told == null ? NONE : told.body;
        }
    }
}
