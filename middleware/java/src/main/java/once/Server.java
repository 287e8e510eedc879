// SPDX-License-Identifier: Apache-2.0
package once;

import java.io.EOFException;
import java.io.IOException;
import java.lang.System.Logger.Level;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.SocketTimeoutException;
import java.net.StandardProtocolFamily;
import java.net.StandardSocketOptions;
import java.net.URI;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedChannelException;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.SecureRandom;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingDeque;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Where `once serve` is, and how it is asked: by a socket file or by loopback, one call at a time
 * on a connection. It repeats a call that got no answer, and takes no silence for a no.
 */
final class Server {
    static final long LONG = 100_000_000; // ms: a day and more, until the deadline counts alone
    private static final int IDLE_MAX = 64; // connections without work; others have no bound
    private static final int HEADER_MAX = 8192; // of an answer, without its message
    private static final int PART = 1 << 16;
    private static final long ABANDON_MS = 1000; // it counts when the server reads it, however late
    private static final SecureRandom RANDOM = new SecureRandom();
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

    final System.Logger log;
    private final String name; // of the server, as the program says it
    private final SocketAddress where;
    private final String bearer;
    private final LinkedBlockingDeque<SocketChannel> idle = new LinkedBlockingDeque<>(IDLE_MAX);

    /** What the server said. */
    record Told(int code, Map<?, ?> head, byte[] body) {
        boolean does(String what) { return code == 200 && what.equals(head.get("do")); }

        String text(String name) { return (String) head.get(name); }

        long number(String name) {
            return head.get(name) == null ? 0 : ((Number) head.get(name)).longValue();
        }

        List<?> lines() {
            return head.get("headers") == null ? List.of() : (List<?>) head.get("headers");
        }
    }

    Server(Once.Options o) {
        log = o.log;
        name = o.serve;
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
            throw new IllegalArgumentException("once: tokenFile " + o.tokenFile
                    + " cannot be read: " + wrong + "; it has the token of `once serve"
                    + " --token-file` as its first line", wrong);
        }
    }

    /** A point of the clock that nobody sets. */
    static long after(long ms) { return System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(ms); }

    private static long msTo(long until) {
        return TimeUnit.NANOSECONDS.toMillis(until - System.nanoTime());
    }

    private Told ask(String path, Map<String, ?> what, byte[] body, long until)
            throws IOException {
        byte[] line = (Json.write(what) + "\n").getBytes(StandardCharsets.UTF_8);
        String start = "POST /v1/" + path + " HTTP/1.1\r\nHost: once\r\n" + bearer
                + "Content-Type: application/vnd.once\r\nContent-Length: "
                + (line.length + (long) body.length) + "\r\n\r\n";
        SocketChannel free = idle.pollFirst();
        SocketChannel channel = free != null ? free
                : where instanceof InetSocketAddress ? SocketChannel.open()
                : SocketChannel.open(StandardProtocolFamily.UNIX);
        // Channels have no time-out; one that is closed ends what waits for it, a connect, too.
        Future<?> late = CLOCK.schedule(() -> close(channel), Math.max(msTo(until), 1),
                TimeUnit.MILLISECONDS);
        boolean whole = false;
        try {
            if (free == null) {
                channel.connect(where);
            }
            if (free == null && where instanceof InetSocketAddress) {
                channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
            }
            Told told = exchange(channel, start.getBytes(StandardCharsets.ISO_8859_1), line, body);
            whole = late.cancel(false);
            return told;
        } catch (ClosedChannelException closed) {
            throw msTo(until) > 0 ? closed
                    : new SocketTimeoutException("no answer before the deadline");
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

    private static Told exchange(SocketChannel channel, byte[]... parts) throws IOException {
        for (byte[] part : parts) {
            write(channel, part);
        }
        return read(channel);
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

    /** Every call may be repeated: for so long from its first failure, and never after `until`.
     *  Null: the server is away. An interrupt is kept for later, since it would close the
     *  connection of this call and of the next. */
    Told repeat(String path, Map<String, Object> what, byte[] body, long ms, long until) {
        long last = until;
        boolean failed = false;
        boolean interrupted = false;
        try {
            for (long pause = 50;; pause = Math.min(2 * pause, 1000)) {
                interrupted |= Thread.interrupted();
                String said;
                try {
                    Told told = ask(path, what, body, until);
                    if (told.code != 503) {
                        return told;
                    }
                    said = told.text("text");
                } catch (IOException | RuntimeException | VirtualMachineError wrong) {
                    said = wrong.toString();
                }
                interrupted |= Thread.interrupted();
                last = failed || msTo(until) < ms ? last : after(ms);
                boolean isLast = msTo(last) < pause;
                if (!failed || isLast) {
                    say(path, said, isLast);
                }
                failed = true;
                if (isLast) {
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

    private void say(String path, String said, boolean isLast) {
        log.log(Level.WARNING, "once: POST /v1/" + path + " to " + name + ": " + said
                + (isLast ? ". It is given up: see whether `once serve` runs and answers there,"
                        + " and whether this user may open it" : ". It is tried again"));
    }

    static String newId() {
        byte[] id = new byte[16];
        RANDOM.nextBytes(id);
        return HexFormat.of().formatHex(id);
    }

    void abandon(String id) {
        repeat("abandon", new HashMap<>(Map.of("id", id)), Answer.NONE, 0, after(ABANDON_MS));
    }
}
