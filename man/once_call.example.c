/* SPDX-License-Identifier: Apache-2.0 */
#include <once/call.h>

#include <stdio.h>

static int greet(once_task *task, void *user)
{
    once_bytes receipt = {"receipt 1", 9};

    (void)user;
    if (once_task_result(task, "text/plain", receipt, NULL) != ONCE_OK) {
        once_task_release(task); /* nothing has been done yet */
        return 1;
    }
    puts("hello"); /* the effect */
    return 0;
}

int main(void)
{
    once_call_options options = ONCE_CALL_OPTIONS_INIT;
    once_result result = ONCE_RESULT_INIT;
    once_error err = {0, ""};
    once_engine *engine = NULL;
    int i, rc = ONCE_OK;

    if (once_engine_open("memory:", NULL, &err, &engine) < 0)
        return 1;
    options.key.data = "greeting";
    options.key.size = 8;
    for (i = 0; i < 2 && rc >= 0; i++) {
        rc = once_call(engine, &options, greet, NULL, &err, &result);
        printf("%s: %.*s\n", rc == ONCE_OK ? "now" : "before",
               (int)result.bytes.size, (const char *)result.bytes.data);
        once_result_clear(&result);
    }
    once_engine_close(engine);
    return rc < 0;
}
