// SPDX-License-Identifier: Apache-2.0
package once;

import jakarta.servlet.http.Cookie;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The header lines of an answer that is held. The container's response gets them when the answer
 * is told, from the thread that tells it: a thread that comes later changes no other answer.
 */
final class Head {
    private static final Pattern CHARSET =
            Pattern.compile(";\\s*charset\\s*=\\s*(?:\"([^\"]*)\"|([^;\\s]*))",
                    Pattern.CASE_INSENSITIVE);
    private static final Pattern COOKIE_VALUE = // RFC 6265, and what is not ASCII
            Pattern.compile("(\"?)[!#-+\\--:<-\\[\\]-~\\x80-\\uffff]*\\1");
    private static final DateTimeFormatter DATE = // of HTTP: Java's own has a day of one digit
            DateTimeFormatter.ofPattern("EEE, dd MMM yyyy HH:mm:ss 'GMT'", Locale.ENGLISH);
    private static final Set<String> COOKIE_WORDS =
            Set.of("domain", "max-age", "path", "secure", "httponly", "expires");

    private final Map<String, List<List<String>>> lines = new LinkedHashMap<>();
    private final String usual; // the charset where nobody sets one
    private String type; // without its charset
    private String charset;

    /** What filters that stand before have set counts until the servlet sets another. */
    Head(List<List<String>> before, String usual) {
        this.usual = usual == null ? "ISO-8859-1" : usual;
        before.forEach(line -> add(line.get(0), line.get(1)));
        if (charset == null && !this.usual.equalsIgnoreCase("ISO-8859-1")) {
            charset = this.usual;
        }
    }

    synchronized void set(String name, String value) {
        if (name != null && !name.isEmpty() && value != null) {
            lines.remove(key(name));
            add(name, value);
        }
    }

    synchronized void add(String name, String value) {
        if (name == null || name.isEmpty() || value == null) {
            return;
        } else if (name.equalsIgnoreCase("Content-Type")) {
            setType(value, true);
            return;
        } else if (name.equalsIgnoreCase("Content-Length")) {
            lines.remove(key(name)); // there is one
        }
        lines.computeIfAbsent(key(name), n -> new ArrayList<>())
                .add(List.of(name, Answer.clean(value)));
    }

    private static String key(String name) { return name.toLowerCase(Locale.ROOT); }

    /** The charset of a writer stays. */
    synchronized void setType(String text, boolean withCharset) {
        Matcher m = CHARSET.matcher(text == null ? "" : text);
        boolean found = m.find();
        type = text == null ? null : found ? m.replaceFirst("") : text;
        if (withCharset && (found || text == null)) {
            charset = !found ? null : m.group(1) != null ? m.group(1) : m.group(2);
        }
    }

    synchronized void setCharset(String name) { charset = name; }

    synchronized boolean hasCharset() { return charset != null; }

    synchronized String charset() { return charset == null ? usual : charset; }

    synchronized String type() {
        return type == null || charset == null ? type : type + ";charset=" + charset;
    }

    synchronized void remove(String name) { lines.remove(key(name)); }

    synchronized void clear() {
        lines.clear();
        type = null;
        charset = null;
    }

    synchronized boolean has(String name) { return !all(name).isEmpty(); }

    synchronized String first(String name) { return has(name) ? all(name).get(0) : null; }

    synchronized List<String> all(String name) {
        if (name.equalsIgnoreCase("Content-Type")) {
            return type == null ? List.of() : List.of(type());
        }
        return lines.getOrDefault(key(name), List.of()).stream().map(l -> l.get(1)).toList();
    }

    synchronized Collection<String> names() {
        Set<String> out = new LinkedHashSet<>();
        lines.values().forEach(each -> out.add(each.get(0).get(0)));
        if (type != null) {
            out.add("Content-Type");
        }
        return out;
    }

    synchronized List<List<String>> lines() {
        List<List<String>> out = new ArrayList<>();
        lines.values().forEach(out::addAll);
        if (type != null) {
            out.add(List.of("Content-Type", Answer.clean(type())));
        }
        return out;
    }

    static String date(long ms) {
        return DATE.format(ZonedDateTime.ofInstant(Instant.ofEpochMilli(ms), ZoneOffset.UTC));
    }

    /** A cookie may be changed after it was added, so that it becomes a line at once. */
    static String text(Cookie c) {
        String value = c.getValue() == null ? "" : c.getValue();
        if (!COOKIE_VALUE.matcher(value).matches()) {
            throw new IllegalArgumentException("once: the value of the cookie " + c.getName()
                    + " has a character that no cookie may have; encode it first");
        }
        StringBuilder out = new StringBuilder(c.getName() + "=" + value);
        if (c.getMaxAge() >= 0) {
            put(out, "Max-Age", String.valueOf(c.getMaxAge()));
            put(out, "Expires", date(c.getMaxAge() == 0 ? 0
                    : System.currentTimeMillis() + c.getMaxAge() * 1000L));
        }
        put(out, "Domain", c.getDomain());
        put(out, "Path", c.getPath());
        put(out, "Secure", c.getSecure() ? "" : null);
        put(out, "HttpOnly", c.isHttpOnly() ? "" : null);
        c.getAttributes().forEach((name, of) -> {
            if (!COOKIE_WORDS.contains(key(name))) {
                put(out, name, of);
            }
        });
        return new String(out.toString().getBytes(StandardCharsets.UTF_8),
                StandardCharsets.ISO_8859_1);
    }

    private static void put(StringBuilder out, String name, String value) {
        if (value != null && value.indexOf(';') >= 0) {
            throw new IllegalArgumentException("once: " + name + " of a cookie has a \";\"");
        } else if (value != null) {
            out.append("; ").append(name).append(value.isEmpty() ? "" : "=" + value);
        }
    }
}
