/* SPDX-License-Identifier: Apache-2.0 */

/* Sleeping and waking: waiters of operations share one doorbell, an eventfd that a peer rings; the progress thread has
 * another one.
 *
 * To ring is to write to an eventfd. To take the ring is to read it, after which it is not readable. To look is to find
 * the words that peers have stored, and to complete the operations that they announce.
 *
 * A waiter looks, under the group's lock, whether its operation has completed. If not, and if no other waiter leads, it
 * becomes the leader: it arms (a ringer that finds nobody armed saves the system call), looks once more, says which
 * operation it sleeps for, gives up the lock and sleeps on the doorbell. All other waiters are followers. They sleep on a
 * condition variable until their operation has completed or there is no leader.
 *
 * A look that completes operations, of whichever thread, wakes the followers. It rings for the leader if the leader's
 * operation is among them. A leader whose operation has completed gives up the lead and wakes the followers: one of them
 * leads.
 *
 * The progress thread takes rings off the same doorbell in its steps, the leader's too. A step rings again if the
 * leader's operation has completed, and then looks for what the ring announced. It sleeps on its own eventfd until a need
 * is raised, as by an operation with a future. It says that it is going to sleep under the lock under which needs are
 * raised; whoever raises one wakes it if it has said so.
 *
 * Arrivals come from a peer that stores a word and then rings if somebody is armed. Both sides fence, so their steps are
 * taken as sequentially consistent here. Deadlines are left out: nobody is woken by time.
 *
 * Operation 0 completes with the first word of a peer, operation 1 with the last. Waiters 1, 3, ... wait for the latter.
 *
 * Checked: every waiter returns, and the progress thread meets every need (else: an invalid end state). The model's end
 * is the end of all processes, so one that sleeps for ever is found. test_models.py sets the macros:
 *
 *   WAITERS           threads that wait
 *   ARRIVALS          words of peers
 *   DRAIN_FOR_ALL     each waiter sleeps on the doorbell itself, and the first that wakes takes the ring
 *   LOOK_THEN_ARM     the leader does not look again after it has armed
 *   SILENT_LEADER     the leader gives up the lead and wakes nobody
 *   SILENT_LOOK       a look that completes the leader's operation does not ring for it
 *   TAKEN_RING        a step of the progress thread does not ring again for a leader whose operation has completed
 *   DECIDE_THEN_ARM   the progress thread decides to sleep, and says so in a step of its own
 */

#define NOBODY  255

byte landed;                 /* words that a peer has stored */
byte found;                  /* of them, those that a look has found */
byte armed;                  /* whether the leader may sleep on the doorbell */
bool doorbell;               /* the eventfd is readable */
bool has_leader;
byte leader_wants = NOBODY;  /* the words that the leader sleeps for */
byte followers;              /* waiters on the condition variable */
byte notified;               /* how often the condition variable was notified */
bool lock;

bool need;                   /* something is to be done by the progress thread */
bool is_sleeping;            /* what the progress thread has said */
bool wake_fd;                /* its own eventfd is readable */
byte num_met;

#define ACQUIRE  atomic { !lock -> lock = true }
#define RELEASE  lock = false

#define WANTED(self)  ((self) % 2 -> ARRIVALS : 1)
#define IS_DONE(self)  (found >= WANTED(self))
#define LEADER_IS_DONE  (leader_wants != NOBODY && found >= leader_wants)

inline wake_followers() {
    if
    :: followers > 0 -> notified++
    :: else
    fi
}

/* Under the lock. */
inline look() {
    d_step {
        if
        :: landed > found ->
            found = landed;
            wake_followers();
#ifndef SILENT_LOOK
            if
            :: LEADER_IS_DONE -> doorbell = true
            :: else
            fi
#endif
        :: else
        fi
    }
}

inline sleep_as_leader(self) {
    armed++;
#ifndef LOOK_THEN_ARM
    look();
#endif
    if
    :: IS_DONE(self)
    :: else ->
        leader_wants = WANTED(self);
        RELEASE;
        atomic { doorbell -> doorbell = false };
        ACQUIRE;
        leader_wants = NOBODY
    fi;
    armed--
}

/* The condition variable: it gives up the lock and starts to sleep in one step, and checks its predicate after each
 * notification. */
inline sleep_as_follower(self) {
    followers++;
    do
    :: IS_DONE(self) || !has_leader -> break
    :: else ->
        seen = notified;
        RELEASE;
        notified != seen;
        ACQUIRE
    od;
    followers--
}

proctype waiter(byte self) {
    byte seen;
    bool leads;
    ACQUIRE;
    do
    :: look();
        if
        :: IS_DONE(self) -> break
        :: else
        fi;
#ifdef DRAIN_FOR_ALL
        sleep_as_leader(self)
#else
        if
        :: !has_leader -> has_leader = true; leads = true
        :: else
        fi;
        if
        :: leads -> sleep_as_leader(self)
        :: else -> sleep_as_follower(self)
        fi
#endif
    od;
    if
    :: leads ->
        has_leader = false;
#ifndef SILENT_LEADER
        wake_followers()
#endif
    :: else
    fi;
    RELEASE
}

/* Steps of the progress thread while operations need it: they come at any time. */
proctype background_steps() {
    byte i;
    for (i : 1 .. 2) {
        ACQUIRE;
        doorbell = false;
#ifndef TAKEN_RING
        if
        :: LEADER_IS_DONE -> doorbell = true
        :: else
        fi;
#endif
        look();
        RELEASE
    }
}

/* Stores the words of the peers, each followed by a ring if somebody is armed. */
proctype peer() {
    byte i;
    for (i : 1 .. ARRIVALS) {
        landed++;
        if
        :: armed > 0 -> doorbell = true
        :: else
        fi
    }
}

/* Raises needs, one after the other, as a thread does that starts operations with futures. */
proctype starter() {
    byte i;
    for (i : 1 .. 2) {
        num_met == i - 1; /* the callback of the one before has run */
        ACQUIRE;
        need = true;
        if
        :: is_sleeping -> wake_fd = true
        :: else
        fi;
        RELEASE
    }
}

proctype progress_thread() {
    do
    :: num_met == 2 -> break
    :: else ->
        ACQUIRE;
        if
        :: need -> need = false; num_met++; RELEASE
        :: else ->
#ifdef DECIDE_THEN_ARM
            RELEASE; /* decided; a need that is raised now finds nobody asleep */
            ACQUIRE;
#endif
            is_sleeping = true;
            RELEASE;
            atomic { wake_fd -> wake_fd = false };
            ACQUIRE;
            is_sleeping = false;
            RELEASE
        fi
    od
}

init {
    byte i;
    atomic {
        for (i : 0 .. WAITERS - 1) { run waiter(i) }
        run peer();
        run background_steps();
        run starter();
        run progress_thread();
        i = 0
    }
}
