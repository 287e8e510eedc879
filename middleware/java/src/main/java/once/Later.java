// SPDX-License-Identifier: Apache-2.0
package once;

import jakarta.servlet.AsyncContext;
import jakarta.servlet.AsyncEvent;
import jakarta.servlet.AsyncListener;
import jakarta.servlet.ServletContext;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import java.io.IOException;
import java.lang.System.Logger.Level;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeoutException;

/**
 * What a servlet answers later. It is told before the container ends the response: when the
 * container calls onComplete() the response is gone. The servlet's own listeners are kept here,
 * since they get events of this context; they may answer a time-out themselves.
 */
final class Later implements AsyncContext, AsyncListener {
    private record Entry(AsyncListener listener, ServletRequest q, ServletResponse r) { }

    private interface Event {
        void fire(AsyncListener to, AsyncEvent event) throws IOException;
    }

    private final Held held;
    private final List<Entry> listeners = new CopyOnWriteArrayList<>();
    volatile AsyncContext real;
    volatile boolean started; // in the dispatch that runs now
    volatile boolean ended; // completed or dispatched

    Later(Held held) { this.held = held; }

    AsyncContext start(AsyncContext real) {
        this.real = real;
        ended = false;
        started = true;
        real.addListener(this);
        return this;
    }

    private void fire(AsyncEvent event, Event what) {
        for (Entry e : listeners) {
            try {
                what.fire(e.listener, new AsyncEvent(this, e.q, e.r, event.getThrowable()));
            } catch (IOException | RuntimeException wrong) {
                held.x.log(Level.WARNING, "a listener broke", wrong);
            }
        }
    }

    private void broke(Throwable wrong, int code) throws IOException {
        held.lock.lock(); // another thread may be completing it now
        try {
            if (!ended && held.broke(wrong, code)) {
                ended = true;
                real.complete();
            }
        } finally {
            held.lock.unlock();
        }
    }

    /** What is thrown on after that would end the next request of the connection. */
    private boolean isOver(Throwable wrong) {
        try {
            broke(wrong, Exchange.isTimeout(wrong) ? 504 : 502);
        } catch (IOException gone) {
            held.x.log(Level.DEBUG, "the client has left", gone);
        }
        return ended;
    }

    @Override public void onTimeout(AsyncEvent event) throws IOException {
        fire(event, AsyncListener::onTimeout);
        broke(new TimeoutException("the asynchronous answer did not come"), 504);
    }

    @Override public void onError(AsyncEvent event) throws IOException {
        fire(event, AsyncListener::onError);
        broke(event.getThrowable(), Exchange.isTimeout(event.getThrowable()) ? 504 : 502);
    }

    /** The next start has none of the listeners, unless they add themselves now. */
    @Override public void onStartAsync(AsyncEvent event) {
        List<Entry> old = List.copyOf(listeners);
        listeners.clear();
        for (Entry e : old) {
            try {
                e.listener.onStartAsync(new AsyncEvent(this, e.q, e.r));
            } catch (IOException | RuntimeException wrong) {
                held.x.log(Level.WARNING, "a listener broke", wrong);
            }
        }
    }

    @Override public void onComplete(AsyncEvent event) {
        if (!held.told) {
            held.told = true;
            held.x.log(Level.ERROR, "nobody saw the answer: is the filter mapped for ASYNC?",
                    null);
            held.ask(() -> held.x.broken(502));
        }
        fire(event, AsyncListener::onComplete);
    }

    /** Either the servlet ends this, or a time-out does. */
    private void end(Runnable how) {
        held.lock.lock();
        try {
            ended = true;
            how.run();
        } finally {
            held.lock.unlock();
        }
    }

    private void tellAndComplete() {
        try {
            held.finish();
        } catch (IOException gone) {
            held.x.log(Level.DEBUG, "the client has left", gone);
        } finally {
            real.complete();
        }
    }

    @Override public void complete() { end(this::tellAndComplete); }

    @Override public void dispatch() { end(real::dispatch); }

    @Override public void dispatch(String path) { end(() -> real.dispatch(path)); }

    @Override public void dispatch(ServletContext context, String path) {
        end(() -> real.dispatch(context, path));
    }

    @Override public void addListener(AsyncListener l) { addListener(l, null, null); }

    @Override public void addListener(AsyncListener l, ServletRequest q, ServletResponse r) {
        listeners.add(new Entry(l, q, r));
    }

    @Override public <T extends AsyncListener> T createListener(Class<T> type)
            throws ServletException {
        return real.createListener(type);
    }

    @Override public void start(Runnable work) {
        real.start(() -> {
            try {
                work.run();
            } catch (RuntimeException | Error wrong) {
                if (!isOver(wrong)) {
                    throw wrong;
                }
            }
        });
    }

    @Override public ServletRequest getRequest() { return real.getRequest(); }

    @Override public ServletResponse getResponse() { return real.getResponse(); }

    @Override public boolean hasOriginalRequestAndResponse() {
        return real.hasOriginalRequestAndResponse();
    }

    @Override public void setTimeout(long ms) { real.setTimeout(ms); }

    @Override public long getTimeout() { return real.getTimeout(); }
}
