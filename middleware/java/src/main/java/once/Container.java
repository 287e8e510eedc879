// SPDX-License-Identifier: Apache-2.0
package once;

import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletRequestWrapper;
import java.lang.reflect.Field;

/** What servlets have no words for, and some containers say. */
final class Container {
    private Container() { }

    /** How many bytes of the body have come, whoever has read them: a body in chunks does not say
     *  how long it is. 0: the container does not say. Tomcat does. */
    static long bytesRead(ServletRequest q) {
        ServletRequest inner = q;
        while (inner instanceof ServletRequestWrapper wrapper) {
            inner = wrapper.getRequest();
        }
        try {
            Field field = inner.getClass().getDeclaredField("request");
            field.setAccessible(true);
            Object request = field.get(inner);
            Object coyote = request.getClass().getMethod("getCoyoteRequest").invoke(request);
            return ((Number) coyote.getClass().getMethod("getBytesRead").invoke(coyote))
                    .longValue();
        } catch (ReflectiveOperationException | RuntimeException other) {
            return 0;
        }
    }
}
