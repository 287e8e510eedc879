/* SPDX-License-Identifier: Apache-2.0 */
/*
 * caller.c - one call of once_call(), to be one with those of the middlewares.
 *
 *    caller STORE GROUP KEY FINGERPRINT RESULT
 *
 * Prints the answer's number, the code, the type and the bytes.
 */
#include <once/call.h>

#include <stdio.h>
#include <string.h>

static int work(once_task *task, void *user)
{
    const char *text = user;

    return once_task_result(task, "application/octet-stream",
                            (once_bytes){text, strlen(text)}, NULL);
}

int main(int argc, char **argv)
{
    once_call_options o = ONCE_CALL_OPTIONS_INIT;
    once_result r = ONCE_RESULT_INIT;
    once_error err = {0, ""};
    once_engine *e = NULL;
    int rc;

    if (argc != 6 || once_engine_open(argv[1], NULL, &err, &e) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    o.group = argv[2];
    o.key = (once_bytes){argv[3], strlen(argv[3])};
    o.fingerprint = (once_bytes){argv[4], strlen(argv[4])};
    rc = once_call(e, &o, work, argv[5], &err, &r);
    printf("%s %d %s %.*s\n", once_text(rc), r.code, r.type, (int)r.bytes.size,
           r.bytes.size > 0 ? (const char *)r.bytes.data : "");
    once_result_clear(&r);
    once_engine_close(e);
    return 0;
}
