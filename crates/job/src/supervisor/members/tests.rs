//! Tests of which programs are members of a job, and which are not any more.

use std::sync::mpsc;

use katydid_tests::deadline::hang::hang_limit;

use super::*;

const KEY: SessionKey = SessionKey([7; 16]);

/// A job socket, with the receiver of its events.
fn socket() -> (tempfile::TempDir, Members, mpsc::Receiver<MemberEvent>) {
    let folder = tempfile::tempdir().unwrap();
    let (sender, events) = mpsc::channel();
    let members = Members::listen(&folder.path().join("shims"), sender).unwrap();
    (folder, members, events)
}

fn send(mut stream: &UnixStream, message: &FromProgram) {
    stream.write_all(&message.encode().unwrap()).unwrap();
}

/// A shim's connection after its hello; `state` as in [`FromProgram::Member`].
fn shim(folder: &tempfile::TempDir, pid: u32, state: u32) -> UnixStream {
    let stream = UnixStream::connect(folder.path().join("shims")).unwrap();
    send_hello(&stream, pid, state);
    stream
}

fn send_hello(stream: &UnixStream, pid: u32, state: u32) {
    let (address, program) = ("unix:/s".to_owned(), "app".to_owned());
    let member = FromProgram::Member {
        protocol: JOB_PROTOCOL_VERSION,
        session: 1,
        pid,
        key: KEY,
        address,
        link: 1,
        state,
        frames: 3,
        program,
    };
    send(stream, &member);
}

fn order_of(mut stream: &UnixStream) -> ToProgram {
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head).unwrap();
    let mut message = head.to_vec();
    message.resize(envelope::length(&head, MAX_JOB_MESSAGE_BYTES).unwrap(), 0);
    stream.read_exact(&mut message[HEAD_BYTES..]).unwrap();
    ToProgram::decode(&message).unwrap()
}

/// Waits until the members meet `condition`.
fn until(members: &Members, condition: impl Fn(&[Member]) -> bool) -> Vec<Member> {
    let mut state = members.lock();
    loop {
        let list: Vec<Member> = state.entries.iter().map(|entry| entry.member.clone()).collect();
        if condition(&list) {
            return list;
        }
        state = members.0.changed.wait(state).unwrap();
    }
}

#[test]
fn an_order_is_answered_by_the_one_it_was_given_to() {
    let (folder, members, _events) = socket();
    let shims = [shim(&folder, 1, 0), shim(&folder, 2, 0)];
    let list = until(&members, |list| list.len() == 2);
    for member in list {
        let program = shims[member.pid as usize - 1].try_clone().unwrap();
        let thread = thread::spawn(move || {
            assert_eq!(order_of(&program), ToProgram::Hold {});
            send(&program, &FromProgram::Held { frames: 40 + u64::from(member.pid) });
        });
        let answer = members.order(member.id, &ToProgram::Hold {}, hang_limit()).unwrap();
        assert_eq!(answer, FromProgram::Held { frames: 40 + u64::from(member.pid) });
        thread.join().unwrap();
    }
    assert_eq!(members.arrivals(), 2);
}

#[test]
fn silent_member_gets_no_orders_until_it_is_back() {
    let (folder, members, _events) = socket();
    let program = shim(&folder, 7, 0);
    program.set_read_timeout(Some(hang_limit())).unwrap();
    let id = until(&members, |list| list.len() == 1)[0].id;
    let hold = |id, timeout| members.order(id, &ToProgram::Hold {}, timeout);
    assert!(matches!(hold(id, Duration::from_millis(1)), Err(MemberError::Silent { pid: 7, .. })));
    // A late answer does not count for another order.
    assert_eq!(order_of(&program), ToProgram::Hold {});
    send(&program, &FromProgram::Held { frames: 41 });
    until(&members, |list| list[0].frames == 41);
    assert!(matches!(hold(id, hang_limit()), Err(MemberError::Silent { pid: 7, .. })));
    // The program learns that no supervisor will release it, and comes back.
    assert_eq!((&program).read(&mut [0; 1]).unwrap(), 0);
    drop(program);
    until(&members, <[Member]>::is_empty);
    let program = shim(&folder, 7, 0);
    let id = until(&members, |list| list.len() == 1)[0].id;
    let thread = thread::spawn(move || {
        assert_eq!(order_of(&program), ToProgram::Hold {});
        send(&program, &FromProgram::Held { frames: 4 });
        program
    });
    assert_eq!(hold(id, hang_limit()).unwrap(), FromProgram::Held { frames: 4 });
    drop(thread.join().unwrap());
}

#[test]
fn a_refusal_and_an_end_are_errors_that_name_the_program() {
    let (folder, members, _events) = socket();
    let program = shim(&folder, 9, 0);
    let id = until(&members, |list| list.len() == 1)[0].id;
    let handle = members.clone();
    let thread = thread::spawn(move || handle.order(id, &ToProgram::Leave {}, hang_limit()));
    assert_eq!(order_of(&program), ToProgram::Leave {});
    send(&program, &FromProgram::Failed { text: "a descriptor is gone".into() });
    let error = thread.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("app (process 9)") && error.ends_with("a descriptor is gone"), "{error}");
    drop(program);
    until(&members, <[Member]>::is_empty);
    assert!(matches!(members.order(id, &ToProgram::Hold {}, hang_limit()), Err(MemberError::Gone { .. })));
}

#[test]
fn a_member_that_left_comes_back_to_the_same_entry() {
    let (folder, members, _events) = socket();
    let program = shim(&folder, 5, 0);
    let id = until(&members, |list| list.len() == 1)[0].id;
    members.set_away(id);
    send(&program, &FromProgram::Left { frames: 8 });
    drop(program);
    let program = shim(&folder, 5, 1);
    members.wait_back(id, hang_limit(), &|| false).unwrap();
    assert_eq!((members.list().len(), members.arrivals()), (1, 1));
    members.set_home(id, "unix:/elsewhere", KEY);
    assert_eq!(members.list()[0].address, "unix:/elsewhere");
    // Another process with that id is another member.
    let _other = shim(&folder, 5, 0);
    until(&members, |list| list.len() == 2);
    drop(program);
    until(&members, |list| list.len() == 1 && list[0].id != id);
}

#[test]
fn an_answer_is_heard_though_its_member_has_ended_since() {
    let (folder, members, _events) = socket();
    let _other_shim = shim(&folder, 5, 0);
    let id = until(&members, |list| list.len() == 1)[0].id;
    members.lock().answers.insert(id, None);
    members.handle_message(id, id, FromProgram::Released {});
    members.leave(id, id);
    assert_eq!(members.answer(id, hang_limit()).unwrap(), FromProgram::Released {});
    assert!(matches!(members.answer(id, hang_limit()), Err(MemberError::Gone { .. })));
}

#[test]
fn an_answer_is_heard_though_the_program_is_known_to_have_ended_before_it_is_read() {
    let (folder, members, _events) = socket();
    let program = shim(&folder, 5, 0);
    let id = until(&members, |list| list.len() == 1)[0].id;
    members.close();
    let handle = members.clone();
    let thread = thread::spawn(move || handle.order(id, &ToProgram::Release {}, hang_limit()));
    assert_eq!(order_of(&program), ToProgram::Release {});
    send(&program, &FromProgram::Released {});
    drop(program);
    assert_eq!(thread.join().unwrap().unwrap(), FromProgram::Released {});
    assert!(matches!(members.answer(id, hang_limit()), Err(MemberError::Gone { .. })));
}

#[test]
fn a_member_that_has_resumed_is_present_before_its_next_word() {
    let (folder, members, events) = socket();
    let program = shim(&folder, 5, 1);
    until(&members, |list| list.len() == 1);
    send(&program, &FromProgram::Resumed {});
    send(&program, &FromProgram::Reached { frames: 12 });
    events.recv().unwrap();
    let Member { state, reached, .. } = members.list().remove(0);
    assert_eq!((state, reached), (MemberState::Present, Some(12)));
}

#[test]
fn no_thread_waits_for_a_program_that_has_ended() {
    let (folder, members, _events) = socket();
    let program = shim(&folder, 5, 0);
    let id = until(&members, |list| list.len() == 1)[0].id;
    members.set_away(id);
    drop(program);
    let handle = members.clone();
    let thread = thread::spawn(move || handle.wait_back(id, hang_limit(), &|| false));
    members.close();
    assert!(matches!(thread.join().unwrap(), Err(MemberError::Gone { .. })));
    members.forget(id);
    assert!(members.list().is_empty());
}

#[test]
fn no_thread_waits_for_a_process_that_has_ended_while_it_was_away() {
    let (folder, members, _events) = socket();
    let program = shim(&folder, 5, 0);
    let id = until(&members, |list| list.len() == 1)[0].id;
    members.set_away(id);
    drop(program);
    assert!(matches!(members.wait_back(id, hang_limit(), &|| true), Err(MemberError::Gone { pid: 5, .. })));
    let short = Duration::from_millis(1);
    assert!(matches!(members.wait_back(id, short, &|| false), Err(MemberError::Silent { pid: 5, .. })));
}

#[test]
fn unsolicited_program_messages_are_events() {
    let (folder, members, events) = socket();
    let program = shim(&folder, 5, 0);
    send(&program, &FromProgram::Reached { frames: 12 });
    let MemberEvent::Reached { id } = events.recv().unwrap() else { unreachable!() };
    assert_eq!(members.list()[0].reached, Some(12));
    send(&program, &FromProgram::Lost { frames: 13 });
    assert_eq!(events.recv().unwrap(), MemberEvent::Lost { id });
    assert_eq!(members.list()[0].state, MemberState::WorkerLost);
    // The program has lost its worker, so it can neither leave nor stay.
    members.set_away(id);
    members.set_present(id);
    assert_eq!(members.list()[0].state, MemberState::WorkerLost);
    members.wait_back(id, hang_limit(), &|| false).unwrap();
}

#[test]
fn a_hidden_socket_is_not_found() {
    let (folder, members, _events) = socket();
    let hidden = members.hide().unwrap();
    assert!(UnixStream::connect(folder.path().join("shims")).is_err());
    drop(hidden);
    let program = shim(&folder, 5, 0);
    let id = until(&members, |list| list.len() == 1)[0].id;
    members.set_away(id);
    drop(program);
    members.wait_silent(id, hang_limit()).unwrap();
}

#[test]
fn a_peer_that_has_connected_is_waited_for() {
    let (folder, members, _events) = socket();
    let early = UnixStream::connect(folder.path().join("shims")).unwrap();
    let _hidden = members.hide().unwrap();
    let handle = members.clone();
    let waiting = thread::spawn(move || handle.wait_for_hellos().map(|()| handle.arrivals()));
    let mut state = members.lock();
    // Two connections: the probe's and the peer's; the first goes at once.
    while state.unknown_peers.is_empty() {
        state = members.0.changed.wait_timeout(state, Duration::from_millis(1)).unwrap().0;
    }
    drop(state);
    send_hello(&early, 7, 0);
    assert_eq!(waiting.join().unwrap().unwrap(), 1);
    drop(early);
}

#[test]
fn asking_process_is_answered_and_is_not_a_member() {
    let (folder, members, _events) = socket();
    let ask =
        FromProgram::Ask { protocol: JOB_PROTOCOL_VERSION, process: 5, what: 3, timeout_ms: 250, gpus: vec![1; 32] };
    let mut early = UnixStream::connect(folder.path().join("shims")).unwrap();
    send(&early, &ask);
    assert_eq!(early.read(&mut [0; 1]).unwrap(), 0, "no answer comes before the job is open");
    members.answer_with(Answerer(Box::new(|question| ToProgram::Answer {
        code: question.process,
        state: question.what,
        text: format!("{} {:?}", question.gpus.len(), question.timeout),
    })));
    let program = UnixStream::connect(folder.path().join("shims")).unwrap();
    send(&program, &ask);
    assert_eq!(order_of(&program), ToProgram::Answer { code: 5, state: 3, text: "32 250ms".into() });
    assert_eq!(members.lock().unknown_peers.len(), 1, "a dump waits for it to hang up");
    drop(program);
    let mut state = members.lock();
    while !state.unknown_peers.is_empty() {
        state = members.0.changed.wait(state).unwrap();
    }
    assert!(state.entries.is_empty());
}

#[test]
fn job_does_not_end_before_its_questions_are_answered() {
    let (folder, members, _events) = socket();
    let (release, releases) = mpsc::channel();
    let (note_question, questions) = mpsc::channel();
    let releases = Mutex::new(releases);
    members.answer_with(Answerer(Box::new(move |_| {
        note_question.send(()).unwrap();
        releases.lock().unwrap().recv().unwrap();
        ToProgram::Answer { code: 0, state: 0, text: String::new() }
    })));
    let mut program = UnixStream::connect(folder.path().join("shims")).unwrap();
    send(
        &program,
        &FromProgram::Ask { protocol: JOB_PROTOCOL_VERSION, process: 5, what: 3, timeout_ms: 250, gpus: Vec::new() },
    );
    questions.recv().unwrap();
    let job = thread::spawn(move || {
        members.close();
        members.wait_for_answers();
        program.set_nonblocking(true).unwrap();
        program.read(&mut [0; 1]).map_err(|error| error.kind())
    });
    // A job that does not wait ends meanwhile.
    thread::sleep(Duration::from_millis(20));
    release.send(()).unwrap();
    assert_eq!(job.join().unwrap(), Ok(1));
}

#[test]
fn peer_with_another_protocol_is_not_a_member() {
    let (folder, members, _events) = socket();
    let mut peer = UnixStream::connect(folder.path().join("shims")).unwrap();
    peer.write_all(&[0xff; 64]).unwrap();
    // The closed connection tells the program.
    assert!(matches!(peer.read(&mut [0; 1]), Ok(0) | Err(_)));
    assert!(members.list().is_empty());
}

#[test]
fn states_have_the_names_that_the_admin_page_gives_them() {
    let all = [MemberState::Present, MemberState::Away, MemberState::Back, MemberState::WorkerLost];
    let names = all.map(|state| serde_json::to_value(state).unwrap());
    assert_eq!(names, ["present", "away", "back", "worker_lost"]);
}
