// SPDX-License-Identifier: Apache-2.0
package once;

import jakarta.servlet.http.Part;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A part of a form, in memory: the container cannot read the body again. */
final class Piece implements Part {
    private static final Pattern PARAMETER = // of Content-Type and Content-Disposition
            Pattern.compile(";\\s*([^\\s=;]+)\\s*=\\s*(?:\"([^\"]*)\"|([^;\\s]*))");
    private final Map<String, List<String>> lines =
            new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
    private final byte[] data;
    private final Charset charset;

    private Piece(String[] head, String bytes, Charset charset) {
        this.charset = charset;
        for (String line : head) {
            String[] two = Given.inCharset(line, charset).split(":", 2);
            if (two.length == 2) {
                lines.computeIfAbsent(two[0].strip(), n -> new ArrayList<>())
                        .add(two[1].strip());
            }
        }
        data = bytes.getBytes(StandardCharsets.ISO_8859_1);
    }

    /** All of them; or it throws, if the last is not whole. */
    static List<Piece> read(String type, byte[] body, Charset charset) {
        List<Piece> pieces = new ArrayList<>();
        String mark = "\r\n--" + parameter(type, "boundary");
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
            Piece piece = new Piece(text.substring(head, data).split("\r\n"),
                    text.substring(Math.min(data + 4, at), at), charset);
            if (piece.getName() != null) {
                pieces.add(piece);
            }
            if (pieces.size() > Given.PIECES_MAX) {
                throw new IllegalStateException("once: the form has too many parts");
            }
        }
        return pieces;
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

    String text() { return new String(data, charset); }

    private String of(String name) {
        return parameter(getHeader("Content-Disposition"), name);
    }

    @Override public String getName() { return of("name"); }

    @Override public String getSubmittedFileName() { return of("filename"); }

    @Override public String getContentType() { return getHeader("Content-Type"); }

    @Override public long getSize() { return data.length; }

    @Override public InputStream getInputStream() { return new ByteArrayInputStream(data); }

    @Override public void write(String file) throws IOException {
        Files.write(Path.of(file), data);
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
