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
    private volatile boolean gone; // the container has given the response up, and the work goes on
    private volatile long since;
    private volatile ServletRequest q;
    private volatile ServletResponse r;

    Later(Held held) { this.held = held; }

    AsyncContext start(AsyncContext real, ServletRequest q, ServletResponse r) {
        this.real = real;
        this.q = q;
        this.r = r;
        since = System.nanoTime();
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

    void broke(Throwable wrong, int code) throws IOException {
        held.lock.lock(); // another thread may be completing it now
        try {
            if (gone && !ended) {
                ended = true;
                held.tell(false);
            } else if (!ended && held.broke(wrong, code)) {
                ended = true;
                real.complete();
            }
        } finally {
            held.lock.unlock();
        }
    }

    /** The dispatch that has started this has thrown, and its client has an answer. */
    void finish() {
        held.lock.lock();
        try {
            if (started && !ended) {
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

    /** Containers that stop say so by this event, too: then the time is not over. */
    private boolean isStop() {
        long ms = (System.nanoTime() - since) / 1_000_000;
        return real.getTimeout() <= 0 || ms + 100 < real.getTimeout();
    }

    /** The work goes on, and hears nothing of it: what it will have done is told when it ends. */
    private void leave(String why, boolean isStop) throws IOException {
        held.lock.lock();
        try {
            if (!ended && !held.told) {
                gone = true;
                held.deaf = Thread.currentThread();
                held.x.log(Level.WARNING, why + "; the outcome is told when the servlet ends",
                        null);
                if (isStop) {
                    held.stop();
                    real.complete();
                }
            }
        } finally {
            held.lock.unlock();
        }
    }

    @Override public void onTimeout(AsyncEvent event) throws IOException {
        if (isStop() && !ended && !held.told) {
            leave("the container stops", true);
            return;
        }
        fire(event, AsyncListener::onTimeout);
        broke(new TimeoutException("the asynchronous answer did not come"), 504);
    }

    /** What the work throws comes by other ways: see isOver(), and Once.run(). */
    @Override public void onError(AsyncEvent event) throws IOException {
        if (event.getThrowable() instanceof IOException && !ended && !held.told) {
            leave("the client has left", false);
            return;
        }
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
        held.deaf = null;
        if (gone) {
            return; // the work's listeners hear of it when the work has completed
        } else if (!held.told) {
            held.told = true;
            held.x.log(Level.ERROR, "nobody saw the answer: is the filter mapped for ASYNC?",
                    null);
            held.ask(() -> held.x.broken(502));
        }
        fire(event, AsyncListener::onComplete);
    }

    /** Either the servlet ends this, or a time-out does. */
    private void end(Runnable how, boolean isWhole) {
        held.lock.lock();
        try {
            if (ended) { // the container may have given its context to another request
                throw new IllegalStateException("once: this was completed or dispatched before,"
                        + " or its time was over");
            }
            ended = true;
            if (gone) { // nobody is left to dispatch to
                held.tell(isWhole);
            } else {
                how.run();
            }
        } finally {
            held.lock.unlock();
        }
        if (gone) {
            fire(new AsyncEvent(this), AsyncListener::onComplete);
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

    @Override public void complete() { end(this::tellAndComplete, true); }

    @Override public void dispatch() { end(real::dispatch, false); }

    @Override public void dispatch(String path) { end(() -> real.dispatch(path), false); }

    @Override public void dispatch(ServletContext context, String path) {
        end(() -> real.dispatch(context, path), false);
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

    @Override public ServletRequest getRequest() { return q; }

    @Override public ServletResponse getResponse() { return r; }

    @Override public boolean hasOriginalRequestAndResponse() {
        return real.hasOriginalRequestAndResponse();
    }

    @Override public void setTimeout(long ms) { real.setTimeout(ms); }

    @Override public long getTimeout() { return real.getTimeout(); }
}
