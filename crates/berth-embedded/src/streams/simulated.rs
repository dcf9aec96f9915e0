//! Simulated pods, which have no program. `exec` prints the text of an annotation, so that tests of
//! tools that run commands need no program.

use berth_api::berth::{EXEC_EXIT_CODE_ANNOTATION, EXEC_OUTPUT_ANNOTATION};
use berth_apimachinery::meta;
use berth_apimachinery::status::Status;
use berth_apiserver::Command;
use berth_pod_runtime::ExitStatus;
use futures::FutureExt;
use serde_json::Value;
use tokio::io::AsyncWriteExt;

use super::run;

/// The response to a request that needs a program; `what` is the subresource.
pub(super) fn refusal(what: &str, pod: &Value) -> Status {
    let scripted = if what == "exec" {
        format!("; set annotation {EXEC_OUTPUT_ANNOTATION} on the pod to define the output of commands")
    } else {
        String::new()
    };
    Status::bad_request(format!(
        "{what} is not possible for pod {}, because its containers are simulated and have no process; pods/log shows \
         their simulated output{scripted}",
        meta::name(pod)
    ))
}

/// The scripted response of a pod to any command.
///
/// # Errors
/// 400 without such a response, or with a malformed response; 500 if the container does not run.
pub(super) fn exec(pod: &Value, container: &str) -> Result<Command, Status> {
    let annotation = |name: &str| pod["metadata"]["annotations"][name].as_str().map(str::to_owned);
    let (output, code) = (annotation(EXEC_OUTPUT_ANNOTATION), annotation(EXEC_EXIT_CODE_ANNOTATION));
    if output.is_none() && code.is_none() {
        return Err(refusal("exec", pod));
    }
    run::running(pod, container)?;
    let code = code.unwrap_or_else(|| "0".to_owned());
    let code: u8 = code.parse().map_err(|_| {
        let name = meta::name(pod);
        Status::bad_request(format!("pod {name}: annotation {EXEC_EXIT_CODE_ANNOTATION}: {code:?} is not 0 to 255"))
    })?;
    let output = output.unwrap_or_default();
    Ok(Box::new(move |io| {
        async move {
            if let Some(mut stdout) = io.stdout {
                // A client that has disconnected does not receive the response.
                let _ = stdout.write_all(output.as_bytes()).await;
                let _ = stdout.shutdown().await;
            }
            Ok(ExitStatus { code: code.into() })
        }
        .boxed()
    }))
}

#[cfg(test)]
mod tests {
    use berth_pod_runtime::StreamIo;
    use serde_json::json;
    use tokio::io::AsyncReadExt;

    use super::*;

    fn pod(annotations: Value) -> Value {
        json!({
            "metadata": {"name": "p", "annotations": annotations},
            "status": {"containerStatuses": [{"name": "main", "state": {"running": {}}}]},
        })
    }

    #[tokio::test]
    async fn a_pod_may_have_a_scripted_answer() {
        let annotations = json!({EXEC_OUTPUT_ANNOTATION: "hello\n", EXEC_EXIT_CODE_ANNOTATION: "3"});
        let Ok(command) = exec(&pod(annotations), "main") else { panic!("refused") };
        let (mut client, stdout) = tokio::io::duplex(64);
        let io = StreamIo { stdin: None, stdout: Some(Box::new(stdout)), stderr: None, tty: false, resize: None };
        assert_eq!(command(io).await.expect("it ends").code, 3);
        let mut text = String::new();
        client.read_to_string(&mut text).await.expect("text");
        assert_eq!(text, "hello\n");
    }

    #[test]
    fn without_an_answer_the_error_contains_the_pod_and_the_remedy() {
        let message = |pod: Value, container: &str| exec(&pod, container).err().expect("refused").message;
        let text = message(pod(json!({})), "main");
        assert!(text.starts_with("exec is not possible for pod p, because its containers are simulated"), "{text}");
        assert!(
            text.ends_with("set annotation berth.dev/exec-output on the pod to define the output of commands"),
            "{text}"
        );
        let wrong = message(pod(json!({EXEC_EXIT_CODE_ANNOTATION: "many"})), "main");
        assert_eq!(wrong, "pod p: annotation berth.dev/exec-exit-code: \"many\" is not 0 to 255");
        assert_eq!(message(pod(json!({EXEC_OUTPUT_ANNOTATION: ""})), "other"), "container not found (\"other\")");
    }
}
