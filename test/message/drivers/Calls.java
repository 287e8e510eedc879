// SPDX-License-Identifier: Apache-2.0
//
// Calls.java - what ../test_drivers.py asks of every driver, in JDBC.
//
//    java -cp postgresql.jar Calls.java HOST PORT DATABASE BODY
import java.nio.charset.StandardCharsets;
import java.sql.*;
import java.util.UUID;

public class Calls {
    static Connection db;
    static String text;

    static PreparedStatement ready(String query, Object... args)
        throws SQLException {
        PreparedStatement s = db.prepareStatement(query);

        for (int i = 0; i < args.length; i++)
            s.setObject(i + 1, args[i]);
        return s;
    }

    static void run(String query, Object... args) throws SQLException {
        try (PreparedStatement s = ready(query, args)) {
            s.execute();
        }
    }

    static void alone(String call, Object... args) {
        try {
            run("SELECT once." + call, args);
            System.out.println("taken");
        } catch (SQLException error) {
            System.out.println(error.getSQLState());
        }
    }

    static void emit(Object body, Object key, Object id, String cast)
        throws SQLException {
        run("SELECT once.emit('r', ?" + cast + ", p_key => ?, p_id => ?)", body,
            key, id);
    }

    static void call() throws SQLException {
        try (PreparedStatement s = ready("SELECT answer, result FROM once.begin("
                 + "'calls', ?, sha256(convert_to(?, 'UTF8')))", 7L, text);
             ResultSet r = s.executeQuery()) {
            r.next();
            System.out.println(r.getString(1));
            if (!r.getString(1).equals("run")) {
                String was = new String(r.getBytes(2), StandardCharsets.UTF_8);

                System.out.println(was.equals(text) ? "True" : "False");
                db.rollback();
                return;
            }
        }
        run("INSERT INTO effect VALUES (?)", text);
        run("SELECT once.finish('calls', ?, 1, ?)", 7L, text);
        db.commit();
    }

    public static void main(String[] args) throws SQLException {
        byte[] all = new byte[256];

        db = DriverManager.getConnection("jdbc:postgresql://" + args[0] + ":"
            + args[1] + "/" + args[2] + "?user=once");
        text = args[3];
        alone("inbox_claim('billing', ?)", "alone");
        alone("barrier_enter(?, 'b', 'try')", "alone");
        alone("emit('r', ?)", text);
        alone("saga_start('k', ?::json)", "[{\"try\": \"r\"}]");
        alone("begin('calls', ?)", "alone");

        db.setAutoCommit(false);
        call();
        call();
        for (int i = 0; i < 256; i++)
            all[i] = (byte) i;
        emit(text, "text", "text", "");
        emit(all, "bytes", "bytes", "");
        emit("{\"a\": \"\\\\u00e9\\\\\"}", "json", "json", "::jsonb");
        emit(text, 42, 43L, "");
        emit(text, null,
            UUID.fromString("6f1c2a9b-e04d-4735-8000-000000000001"), "");
        run("SELECT once.inbox_claim('billing', ?)",
            UUID.fromString("6f1c2a9b-e04d-4735-8000-000000000002"));
        db.commit();
    }
}
