// SPDX-License-Identifier: Apache-2.0

import jakarta.servlet.AsyncContext;
import jakarta.servlet.DispatcherType;
import jakarta.servlet.Filter;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.EOFException;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.BindException;
import java.net.ConnectException;
import java.net.Socket;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.ResourceBundle;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.function.Function;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import once.Once;
import org.apache.catalina.Container;
import org.apache.catalina.connector.Connector;
import org.apache.catalina.core.StandardContext;
import org.apache.catalina.core.StandardWrapper;
import org.apache.catalina.startup.Tomcat;
import org.apache.tomcat.util.descriptor.web.FilterDef;
import org.apache.tomcat.util.descriptor.web.FilterMap;
import org.apache.tomcat.util.json.JSONParser;

/**
 * A service in Java, on Tomcat, whose servlet is guarded by the filter, for the scenarios of
 * test/gateway: ONCE_TARGET=java, and java-async, whose servlet answers on another thread, and
 * java-dispatch, where that thread asks the container to go on.
 *
 * <pre>Service java|java-async|java-dispatch FILE SOCKET</pre>
 *
 * FILE.json is the route file as JSON (routes.py). Its servlet sends the request on to the
 * scenario's upstream and answers with what comes back, byte for byte.
 */
public final class Service {
    private static final Set<String> NOT_FORWARDED = Set.of("connection", "content-length",
            "expect", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade");
    private static final Pattern FIRST_LINE = Pattern.compile("HTTP/1\\.[01] ([2-5]\\d\\d)( .*)?");
    private static final Pattern VARIABLE = Pattern.compile("\\$(\\w+)");

    private static Path errors; // the log

    private static synchronized void log(String text) {
        try {
            Files.writeString(errors, text + "\n", StandardOpenOption.CREATE,
                    StandardOpenOption.APPEND);
        } catch (IOException wrong) {
            throw new IllegalStateException(wrong);
        }
    }

    /** Of the filter; what a servlet throws is written with its name only. */
    private static final class Log implements System.Logger {
        @Override public String getName() { return "once"; }

        @Override public boolean isLoggable(Level level) { return true; }

        @Override public void log(Level level, ResourceBundle bundle, String text,
                Throwable wrong) {
            Service.log(text + (wrong == null ? "" : ": " + wrong));
        }

        @Override public void log(Level level, ResourceBundle bundle, String text, Object... more) {
            Service.log(text);
        }
    }

    // ---- Who asks, and what is computed of it -----------------------------------------------

    /** Name and password. */
    private static String[] userOf(HttpServletRequest q) {
        String text = q.getHeader("Authorization");
        if (text == null || !text.toLowerCase(Locale.ROOT).startsWith("basic ")) {
            return new String[] {"", ""};
        }
        String[] two = new String(Base64.getDecoder().decode(text.substring(6).trim()),
                StandardCharsets.UTF_8).split(":", 2);
        return two.length == 2 ? two : new String[] {two[0], ""};
    }

    private static Function<HttpServletRequest, String> expand(String template) {
        return q -> {
            String text = VARIABLE.matcher(template).replaceAll(m -> Matcher.quoteReplacement(
                    valueOf(q, m.group(1))));
            return text.isEmpty() ? null : text; // a variable that is empty says nothing
        };
    }

    private static String valueOf(HttpServletRequest q, String name) {
        if (name.equals("uri")) {
            return URLDecoder.decode(q.getRequestURI().replace("+", "%2B"), StandardCharsets.UTF_8);
        } else if (name.equals("remote_user")) {
            return userOf(q)[0];
        }
        String value = q.getHeader(name.substring(5).replace('_', '-'));
        return value == null ? "" : value;
    }

    // ---- The upstream -------------------------------------------------------------------------

    /** An answer that breaks off, or none. */
    private static String line(InputStream in) throws IOException {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        for (int c = in.read(); c != '\n'; c = in.read()) {
            if (c < 0) {
                throw new EOFException("cut off");
            }
            out.write(c);
        }
        String text = out.toString(StandardCharsets.ISO_8859_1);
        if (!text.endsWith("\r")) {
            throw new IOException("not HTTP");
        }
        return text.substring(0, text.length() - 1);
    }

    private static byte[] exactly(InputStream in, int n) throws IOException {
        byte[] data = in.readNBytes(n);
        if (data.length < n) {
            throw new EOFException("cut off");
        }
        return data;
    }

    private static byte[] chunks(InputStream in) throws IOException {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        for (int n = Integer.parseInt(line(in).trim(), 16); n > 0;
                n = Integer.parseInt(line(in).trim(), 16)) {
            out.write(exactly(in, n));
            if (!line(in).isEmpty()) {
                throw new IOException("bad chunk");
            }
        }
        while (!line(in).isEmpty()) {
            continue; // trailers
        }
        return out.toByteArray();
    }

    private static void ask(OutputStream out, HttpServletRequest q, byte[] body)
            throws IOException {
        String query = q.getQueryString();
        StringBuilder text = new StringBuilder(q.getMethod() + " " + q.getRequestURI()
                + (query == null ? "" : "?" + query) + " HTTP/1.1\r\nConnection: close\r\n"
                + "Content-Length: " + body.length + "\r\n");
        for (String name : Set.copyOf(Collections.list(q.getHeaderNames()))) {
            if (!NOT_FORWARDED.contains(name.toLowerCase(Locale.ROOT))) {
                q.getHeaders(name).asIterator().forEachRemaining(
                        v -> text.append(name + ": " + v + "\r\n"));
            }
        }
        out.write((text + "\r\n").getBytes(StandardCharsets.ISO_8859_1));
        out.write(body);
    }

    private static void answer(HttpServletRequest q, HttpServletResponse r, Socket socket)
            throws IOException {
        InputStream in = new BufferedInputStream(socket.getInputStream());
        Matcher first = FIRST_LINE.matcher(line(in));
        if (!first.matches()) {
            throw new IOException("not HTTP");
        }
        Map<String, String> values = new HashMap<>();
        for (String text = line(in); !text.isEmpty(); text = line(in)) {
            int colon = text.indexOf(':');
            if (colon < 0) {
                throw new IOException("bad header");
            }
            String name = text.substring(0, colon);
            String value = text.substring(colon + 1).trim();
            values.put(name.toLowerCase(Locale.ROOT), value);
            if (!NOT_FORWARDED.contains(name.toLowerCase(Locale.ROOT))) {
                r.addHeader(name, value);
            }
        }
        int status = Integer.parseInt(first.group(1));
        String length = values.get("content-length");
        r.setStatus(status);
        if (length == null && values.getOrDefault("content-type", "").matches(
                "(text/event-stream|application/x-ndjson).*")) {
            socket.setSoTimeout(0);
            r.flushBuffer();
            byte[] part = new byte[65536];
            for (int n = in.read(part); n >= 0; n = in.read(part)) {
                r.getOutputStream().write(part, 0, n);
                r.flushBuffer();
            }
            return;
        }
        byte[] data = q.getMethod().equals("HEAD") || status == 204 || status == 304 ? new byte[0]
                : "chunked".equals(values.get("transfer-encoding")) ? chunks(in)
                : length != null ? exactly(in, Integer.parseInt(length)) : in.readAllBytes();
        r.getOutputStream().write(data);
    }

    // ---- The servlet --------------------------------------------------------------------------

    private static final class Location {
        final String path;
        final String users;
        final boolean denied;
        final Filter filter;
        private final List<?> origin;
        private final int timeoutMs;

        Location(Map<?, ?> conf, String socket) {
            path = (String) conf.get("path");
            users = (String) conf.get("users");
            denied = (boolean) conf.get("denied");
            origin = (List<?>) conf.get("origin");
            timeoutMs = (int) (((Number) conf.get("timeout")).doubleValue() * 1000);
            filter = conf.get("store") == null ? null : guard(conf, socket);
        }

        private static Filter guard(Map<?, ?> conf, String socket) {
            Once.Options o = new Once.Options().log(new Log())
                    .serve("unix:" + socket + "." + conf.get("store"));
            if (conf.get("route") instanceof Map<?, ?> given) {
                @SuppressWarnings("unchecked")
                Map<String, ?> route = (Map<String, ?>) given;
                o.route(route).bypass("bypass".equals(route.get("store_failure")));
            } else {
                o.route((String) conf.get("route"));
            }
            if (conf.get("scope") != null) {
                o.scope(expand((String) conf.get("scope")));
            }
            if (conf.get("key") != null) {
                o.key(expand((String) conf.get("key")));
            }
            if (conf.get("fingerprint") != null) {
                o.fingerprint(expand((String) conf.get("fingerprint")));
            }
            return new Once(o);
        }

        void forward(HttpServletRequest q, HttpServletResponse r) throws IOException {
            byte[] body = q.getInputStream().readAllBytes();
            Socket open;
            try {
                open = new Socket((String) origin.get(0), ((Number) origin.get(1)).intValue());
            } catch (ConnectException nobody) {
                r.setHeader("Idempotency-Outcome", "not-applied");
                r.setStatus(502);
                return;
            }
            try (Socket socket = open) {
                socket.setSoTimeout(timeoutMs);
                ask(socket.getOutputStream(), q, body);
                answer(q, r, socket);
            }
        }
    }

    /** How the answer comes: on this thread, or later. */
    private static final class Forward extends HttpServlet {
        private static final long serialVersionUID = 1;
        private final String how;

        Forward(String how) { this.how = how; }

        @Override protected void service(HttpServletRequest q, HttpServletResponse r)
                throws IOException {
            Location location = (Location) q.getAttribute("location");
            if (how.equals("java") || q.getDispatcherType() == DispatcherType.ASYNC) {
                location.forward(q, r);
                return;
            }
            AsyncContext later = q.startAsync();
            later.setTimeout(0);
            new Thread(() -> {
                if (how.equals("java-dispatch")) {
                    later.dispatch();
                    return;
                }
                try {
                    location.forward((HttpServletRequest) later.getRequest(),
                            (HttpServletResponse) later.getResponse());
                    later.complete();
                } catch (IOException | RuntimeException wrong) {
                    later.getRequest().setAttribute("wrong", wrong);
                    later.dispatch("/broken");
                }
            }).start();
        }
    }

    /** What a servlet throws that answers on a thread of its own. */
    private static final class Broken extends HttpServlet {
        private static final long serialVersionUID = 1;

        @Override protected void service(HttpServletRequest q, HttpServletResponse r)
                throws IOException {
            if (q.getAttribute("wrong") instanceof RuntimeException wrong) {
                throw wrong;
            }
            throw (IOException) q.getAttribute("wrong");
        }
    }

    // ---- The routes ---------------------------------------------------------------------------

    private static final class Router implements Filter {
        private final List<Location> locations;

        Router(List<Location> locations) { this.locations = locations; }

        private Location find(String path) {
            Location found = null;
            for (Location l : locations) {
                if (path.startsWith(l.path)
                        && (found == null || l.path.length() > found.path.length())) {
                    found = l;
                }
            }
            return found;
        }

        private static boolean knows(String file, HttpServletRequest q) throws IOException {
            return Files.readAllLines(Path.of(file)).contains(String.join(":{PLAIN}", userOf(q)));
        }

        @Override public void doFilter(ServletRequest request, ServletResponse response,
                FilterChain chain) throws IOException, ServletException {
            HttpServletRequest q = (HttpServletRequest) request;
            HttpServletResponse r = (HttpServletResponse) response;
            Location l = (Location) q.getAttribute("location");
            l = l != null ? l : find(q.getRequestURI());
            q.setAttribute("location", l);
            if (l == null) {
                r.setStatus(404);
            } else if (l.users != null && !knows(l.users, q)) {
                r.setHeader("WWW-Authenticate", "Basic realm=\"shop\"");
                r.setStatus(401);
            } else if (l.denied) {
                r.setStatus(403);
            } else if (l.filter == null) {
                chain.doFilter(q, r);
            } else {
                l.filter.doFilter(q, r, chain);
            }
        }
    }

    private static Connector connector(String listen) {
        Connector c = new Connector();
        c.setProperty("address", listen.substring(0, listen.indexOf(':')));
        c.setPort(Integer.parseInt(listen.substring(listen.indexOf(':') + 1)));
        for (Map.Entry<String, String> e : Map.of("maxThreads", "2000", "acceptCount", "1000",
                "maxHttpRequestHeaderSize", "1048576", "maxHttpResponseHeaderSize", "1048576",
                "maxKeepAliveRequests", "-1", "connectionTimeout", "600000",
                "relaxedPathChars", "\"<>[\\]^`{|}", "relaxedQueryChars", "\"<>[\\]^`{|}",
                "maxHeaderCount", "-1", "maxTrailerSize", "1048576").entrySet()) {
            c.setProperty(e.getKey(), e.getValue());
        }
        c.setEncodedSolidusHandling("passthrough");
        c.setMaxParameterCount(-1);
        return c;
    }

    private static Tomcat tomcat(String how, String listen, Router router, File folder)
            throws IOException {
        Tomcat tomcat = new Tomcat();
        tomcat.setBaseDir(folder.getPath());
        tomcat.setConnector(connector(listen));
        StandardContext context = (StandardContext) tomcat.addContext("", folder.getPath());
        Tomcat.addServlet(context, "forward", new Forward(how)).setAsyncSupported(true);
        Tomcat.addServlet(context, "broken", new Broken()).setAsyncSupported(true);
        context.addServletMapping("/", "forward");
        context.addServletMapping("/broken", "broken");
        FilterDef def = new FilterDef();
        def.setFilterName("routes");
        def.setFilter(router);
        def.setAsyncSupported("true");
        context.addFilterDef(def);
        FilterMap map = new FilterMap();
        map.setFilterName("routes");
        map.addURLPattern("/*");
        EnumSet.of(DispatcherType.REQUEST, DispatcherType.ASYNC).forEach(
                type -> map.setDispatcher(type.name()));
        context.addFilterMap(map);
        return tomcat;
    }

    private static boolean isBusy(Container host) {
        StandardContext context = (StandardContext) host.findChildren()[0];
        return context.getInProgressAsyncCount() > 0 || Arrays.stream(context.findChildren())
                .anyMatch(servlet -> ((StandardWrapper) servlet).getCountAllocated() > 0);
    }

    public static void main(String[] args) throws Exception {
        Map<?, ?> conf = new JSONParser(Files.readString(Path.of(args[1] + ".json"))).parseObject();
        Map<?, ?> top = (Map<?, ?>) conf.get("top");
        errors = Path.of((String) top.get("error_log"));
        List<Location> locations = ((List<?>) conf.get("locations")).stream()
                .map(l -> new Location((Map<?, ?>) l, args[2])).toList();
        Tomcat tomcat = tomcat(args[0], (String) top.get("listen"), new Router(locations),
                Files.createTempDirectory(errors.getParent(), "tomcat").toFile());
        CountDownLatch over = new CountDownLatch(1);
        try {
            tomcat.start();
        } catch (org.apache.catalina.LifecycleException wrong) {
            for (Throwable t = wrong; t != null; t = t.getCause()) {
                log(t instanceof BindException ? "Address already in use" : String.valueOf(t));
            }
            Runtime.getRuntime().halt(1);
        }
        sun.misc.Signal.handle(new sun.misc.Signal("TERM"), s -> Runtime.getRuntime().halt(0));
        sun.misc.Signal.handle(new sun.misc.Signal("INT"), s -> over.countDown());
        over.await();
        log("gracefully shutting down");
        Connector c = tomcat.getConnector();
        c.pause();
        c.getProtocolHandler().closeServerSocketGraceful();
        while (isBusy(tomcat.getHost())) {
            Thread.sleep(20);
        }
        tomcat.stop(); // it waits for what is still written
        Runtime.getRuntime().halt(0);
    }
}
