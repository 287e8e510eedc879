// SPDX-License-Identifier: Apache-2.0

import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import once.Once;
import org.apache.catalina.Context;
import org.apache.catalina.startup.Tomcat;
import org.apache.tomcat.util.descriptor.web.FilterDef;
import org.apache.tomcat.util.descriptor.web.FilterMap;
import org.apache.tomcat.util.json.JSONParser;

/**
 * Charges cards, with a servlet in Tomcat. Each charge is a line of a ledger.
 *
 * <pre>java Payments LEDGER PORT</pre>
 */
public final class Payments extends HttpServlet {
    private static final long serialVersionUID = 1;
    private final transient Path ledger;

    private Payments(String ledger) { this.ledger = Path.of(ledger); }

    @Override protected void doPost(HttpServletRequest q, HttpServletResponse r)
            throws IOException {
        Object order;
        Object amount;
        try {
            var given = new JSONParser(new String(q.getInputStream().readAllBytes(),
                    StandardCharsets.UTF_8)).parseObject();
            order = given.get("order");
            amount = given.get("amount");
        } catch (org.apache.tomcat.util.json.ParseException wrong) {
            r.setStatus(400);
            return;
        }
        Files.writeString(ledger, order + " " + amount + "\n", StandardOpenOption.CREATE,
                StandardOpenOption.APPEND);
        r.setStatus(201);
        r.setContentType("application/json");
        r.getWriter().println("{\"order\":\"" + order + "\",\"charged\":" + amount + "}");
    }

    public static void main(String[] args) throws Exception {
        Tomcat tomcat = new Tomcat();
        tomcat.setBaseDir(Files.createTempDirectory("tomcat").toString());
        tomcat.setPort(Integer.parseInt(args[1]));
        tomcat.getConnector().setProperty("address", "127.0.0.1");
        Context context = tomcat.addContext("", null);
        Tomcat.addServlet(context, "charge", new Payments(args[0]));
        context.addServletMappingDecoded("/charge", "charge");

        FilterDef once = new FilterDef();
        once.setFilterName("once");
        // Who calls? Here this header says so: take yours from the session.
        once.setFilter(new Once(new Once.Options().scope(q -> q.getHeader("X-Customer"))));
        once.setAsyncSupported("true");
        FilterMap all = new FilterMap();
        all.setFilterName("once");
        all.addURLPattern("/*");
        context.addFilterDef(once);
        context.addFilterMap(all);
        tomcat.start();
        tomcat.getServer().await();
    }
}
