// SPDX-License-Identifier: Apache-2.0
package once;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The line of JSON before a message's body, since Java has no JSON of its own. It reads what
 * the server says, and refuses what is no JSON, or deeper than any answer.
 */
final class Json {
    private static final int DEPTH_MAX = 8;
    private static final Pattern NUMBER =
            Pattern.compile("-?(0|[1-9]\\d*)(\\.\\d+)?([eE][+-]?\\d+)?");
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
