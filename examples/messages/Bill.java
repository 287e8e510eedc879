// SPDX-License-Identifier: Apache-2.0
import java.security.MessageDigest;
import java.sql.*;

class Bill {
    public static void main(String[] args) throws Exception {
        byte[] body = System.in.readAllBytes();
        try (Connection db = DriverManager.getConnection(System.getenv("JDBC"))) {
            db.setAutoCommit(false);
            PreparedStatement claim = db.prepareStatement(
                "SELECT once.inbox_claim(?, ?, ?, ?)");
            claim.setString(1, System.getenv("ONCE_CONSUMER"));
            claim.setString(2, System.getenv("ONCE_ID"));
            claim.setBytes(3, MessageDigest.getInstance("SHA-256").digest(body));
            claim.setInt(4, Integer.parseInt(System.getenv("ONCE_ATTEMPT")));
            ResultSet answer = claim.executeQuery();
            answer.next();
            if (answer.getString(1).equals("run")) {
                PreparedStatement insert = db.prepareStatement(
                    "INSERT INTO invoice (order_id, cents)"
                    + " SELECT (o->>'order')::bigint, (o->>'cents')::bigint"
                    + " FROM (SELECT ?::jsonb) AS m (o)");
                insert.setString(1, new String(body, "UTF-8"));
                insert.executeUpdate();
            }
            db.commit();
        }
    }
}
