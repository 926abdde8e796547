/*
 * The process that holds a pod's namespaces while its containers come and go.
 *
 * It waits for the signal that ends the pod, and collects the children of others that end up with it
 * where containers share a process namespace.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal_number) {
    (void)signal_number;
    _exit(0);
}

static void collect(int signal_number) {
    (void)signal_number;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

int main(void) {
    signal(SIGINT, end);
    signal(SIGTERM, end);
    signal(SIGCHLD, collect);
    for (;;) {
        pause();
    }
}
