/* SPDX-License-Identifier: Apache-2.0 */
/*
 * consumer.c - a stranger's program. It sees the installed headers and library
 * and nothing else of this house, and is built as C99, C11, C17, C++11 and
 * C++20. It has one payment made, asks again, and wants the first answer.
 */
#include <once/once.h>
#include <once/store.h>

#include <stdio.h>
#include <string.h>

static const char receipt[] = "charged once";

static int say(const char *what, int rc, const once_error *err)
{
    printf("%s: %s (%s)\n", what, once_text(rc), err->text);
    return 1;
}

/* One try at the payment. `*charges` counts how often it took effect. */
static int pay(once_engine *e, int *charges, once_error *err)
{
    once_attempt *a = NULL;
    once_request request;
    once_bytes result;
    int rc;

    memset(&request, 0, sizeof(request));
    request.size = sizeof(request);
    memset(request.name, 7, sizeof(request.name));
    memset(request.fingerprint, 9, sizeof(request.fingerprint));
    rc = once_attempt_new(e, &request, err, &a);
    if (rc < 0)
        return rc;
    rc = once_claim(a, err);
    if (rc == ONCE_OWNER) {
        ++*charges;
        result.data = receipt;
        result.size = sizeof(receipt);
        rc = once_complete(a, ONCE_SUCCESS, result, err);
    } else if (rc == ONCE_REPLAY) {
        result = once_attempt_record(a)->result;
        if (result.size != sizeof(receipt) ||
            memcmp(result.data, receipt, result.size) != 0)
            rc = ONCE_ECORRUPT;
    }
    once_attempt_free(a);
    return rc;
}

int main(void)
{
    once_engine_options options = ONCE_ENGINE_OPTIONS_INIT;
    once_engine *e = NULL;
    once_error err;
    int charges = 0;
    int rc;

    memset(&err, 0, sizeof(err));
    rc = once_engine_open("nothing:here", &options, &err, &e);
    if (rc != ONCE_EURL || e != NULL)
        return say("an unknown store", rc, &err);
    rc = once_engine_open("memory:", &options, &err, &e);
    if (rc < 0)
        return say("open", rc, &err);
    rc = pay(e, &charges, &err);
    if (rc != ONCE_OK)
        return say("first", rc, &err);
    rc = pay(e, &charges, &err);
    if (rc != ONCE_REPLAY || charges != 1)
        return say("second", rc, &err);
    once_engine_close(e);
    printf("%d charge\n", charges);
    return 0;
}
