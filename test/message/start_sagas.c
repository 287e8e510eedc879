/* SPDX-License-Identifier: Apache-2.0 */
/*
 * start_sagas.c - starts sagas, for tests in Python: SQLite has no function that
 * they could call.
 *
 *    start_sagas URL
 *
 * One saga a line on standard input, as JSON: gid, kind, deadline (in ms since
 * 1970, 0: none), steps: try, confirm, cancel, type, body. All in one transaction.
 */
#include <assert.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "messages/relay/base.h"

static const char *text_of(json_t *o, const char *name)
{
    return json_string_value(json_object_get(o, name));
}

static int start(const once_tx *tx, json_t *o, once_error *err)
{
    once_saga_step steps[ONCE_SAGA_STEPS_MAX];
    once_saga saga = ONCE_SAGA_INIT;
    json_t *list = json_object_get(o, "steps");
    size_t i;

    for (i = 0; i < json_array_size(list) && i < ONCE_SAGA_STEPS_MAX; i++) {
        json_t *t = json_array_get(list, i);
        const char *body = text_of(t, "body");

        steps[i] = (once_saga_step)ONCE_SAGA_STEP_INIT;
        steps[i].try_to = text_of(t, "try");
        steps[i].confirm_to = text_of(t, "confirm");
        steps[i].cancel_to = text_of(t, "cancel");
        steps[i].type = text_of(t, "type");
        if (body != NULL)
            steps[i].body = (once_bytes){body, strlen(body)};
    }
    saga.gid = text_of(o, "gid");
    saga.kind = text_of(o, "kind");
    saga.deadline_ms =
        (uint64_t)json_integer_value(json_object_get(o, "deadline"));
    saga.steps = steps;
    saga.n = i;
    return once_saga_start(tx, &saga, NULL, err);
}

int main(int argc, char **argv)
{
    struct once__base *b = NULL;
    once_error err = {0, ""};
    json_t *o;
    int rc;

    assert(argc == 2);
    rc = once__base_open(argv[1], ONCE__BASE_READY, &b, &err);
    if (rc == ONCE_OK)
        rc = once__base_connect(b, &err);
    if (rc == ONCE_OK)
        rc = once__base_begin(b, &err);
    while (rc == ONCE_OK &&
           (o = json_loadf(stdin, JSON_DISABLE_EOF_CHECK, NULL)) != NULL) {
        rc = start(once__base_tx(b), o, &err);
        json_decref(o);
    }
    if (rc == ONCE_OK)
        rc = once__base_commit(b, &err);
    if (rc != ONCE_OK)
        (void)fprintf(stderr, "start_sagas: %d %s\n", rc, err.text);
    once__base_close(b);
    return rc != ONCE_OK;
}
