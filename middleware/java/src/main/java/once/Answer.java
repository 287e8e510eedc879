// SPDX-License-Identifier: Apache-2.0
package once;

import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

/**
 * What the client gets: the servlet's own answer (`own`), what the server says in its place, or one
 * of the three texts that are fixed here.
 */
record Answer(int status, List<?> lines, byte[] body, boolean own) {
    static final byte[] NONE = {};
    static final Answer UNAVAILABLE = problem("store-unavailable", 503,
            "The idempotency store is unavailable",
            "Nothing was done now. Send the same key again after the time in Retry-After.",
            "any", "unavailable");
    static final Answer UNKNOWN = problem("outcome-unknown", 502,
            "The outcome of this request is not known",
            "It may have taken effect. Do not use a new key: find out first.",
            "indeterminate", "indeterminate");
    static final Answer WRONG = new Answer(500, List.of(), NONE, false);

    static Answer of(Server.Told t) {
        return new Answer((int) t.number("status"), t.lines(), t.body(), false);
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

    /** Each line of an answer as a pair. Content-Type stands apart in some containers. */
    static List<List<String>> linesOf(HttpServletResponse from) {
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
    static String clean(String text) {
        StringBuilder out = new StringBuilder(text);
        for (int i = 0; i < out.length(); i++) {
            char c = out.charAt(i);
            if (c > 255 || c < ' ' && c != '\t' || c == 127) {
                out.setCharAt(i, c > 255 ? '?' : ' ');
            }
        }
        return out.toString();
    }

    static void put(HttpServletResponse to, List<?> lines) {
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

    void send(HttpServletResponse to) throws IOException {
        put(to, lines);
        to.setStatus(status);
        if (status != 204 && status != 304) {
            to.setContentLengthLong(body.length);
            to.getOutputStream().write(body);
        }
    }
}
