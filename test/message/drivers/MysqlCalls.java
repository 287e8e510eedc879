// SPDX-License-Identifier: Apache-2.0
//
// MysqlCalls.java - what ../test_mysql_drivers.py asks of every driver, in JDBC with
// MariaDB Connector/J.
//
//    java -cp mariadb-java-client.jar MysqlCalls.java HOST PORT DATABASE USER PASSWORD
//        BODY
import java.nio.charset.StandardCharsets;
import java.sql.*;
import java.util.Arrays;

public class MysqlCalls {
    static Connection db;
    static String text;

    // EXAMPLE: the methods of docs/mysql.md

    static String word(boolean yes) {
        return yes ? "True" : "False";
    }

    static PreparedStatement ready(String query, Object... args)
        throws SQLException {
        PreparedStatement s = db.prepareStatement(query);

        for (int i = 0; i < args.length; i++)
            s.setObject(i + 1, args[i]);
        return s;
    }

    static String ask(String query, Object... args) throws SQLException {
        try (PreparedStatement s = ready("CALL " + query, args);
             ResultSet r = s.executeQuery()) {
            r.next();
            return r.getString(1);
        }
    }

    static void alone(String call, Object... args) {
        try {
            ask(call, args);
            System.out.println("taken");
        } catch (SQLException error) {
            String said = error.getMessage();

            System.out.println(error.getSQLState().equals("ON017")
                ? said.substring(said.indexOf("no trans")).split("\\.")[0] : said);
        }
    }

    static void emit(Object body, String name) throws SQLException {
        String id = ask("once_emit('r', ?, 7, ?, 't', '', 0, 0)", body, name);

        System.out.println(id == null ? "None" : id);
    }

    static void call() throws SQLException {
        byte[] token, bytes = text.getBytes(StandardCharsets.UTF_8);
        String answer;

        try (PreparedStatement s = ready(
                 "CALL once_begin('calls', ?, UNHEX(SHA2(?, 256)))", 7L, text);
             ResultSet r = s.executeQuery()) {
            r.next();
            answer = r.getString("answer");
            token = r.getBytes("token");
            System.out.println(answer + " " + (r.getObject("kind") == null
                ? "None" : r.getString("kind")) + " "
                + word(Arrays.equals(r.getBytes("result"), bytes)));
        }
        if (answer.equals("run")) {
            try (PreparedStatement s = ready(
                     "INSERT INTO effect (body) VALUES (?)", text)) {
                s.execute();
            }
            System.out.println(ask("once_finish('calls', ?, ?, 1, ?)", 7L, token,
                text));
        }
        db.commit();
    }

    public static void main(String[] args) throws SQLException {
        byte[] all = new byte[256];

        db = DriverManager.getConnection("jdbc:mariadb://" + args[0] + ":"
            + args[1] + "/" + args[2], args[3], args[4]);
        text = args[5];
        alone("once_inbox_claim('c', ?, NULL, 0)", "alone");
        alone("once_emit('r', ?, NULL, NULL, NULL, NULL, NULL, NULL)", text);
        alone("once_begin('c', ?, NULL)", "alone");
        alone("once_barrier_enter('g', ?, 'try')", "alone");

        db.setAutoCommit(false);
        call();
        call();
        for (int i = 0; i < 256; i++)
            all[i] = (byte) i;
        emit(text, "text");
        emit(all, "bytes");
        emit(text, "text");
        db.commit();
        placeOrder(db, 42, 1250);
        for (String body : new String[] {"{\"order\": 42, \"cents\": 1250}",
                 "{\"order\": 42, \"cents\": 1250}", "{}"})
            System.out.println(word(take(db, "m1", 42,
                body.getBytes(StandardCharsets.UTF_8))));
    }
}
