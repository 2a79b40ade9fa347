//! Tables of tools, as they are and as they should not be.

use proptest::prelude::*;

use super::*;

fn refused(text: &str) -> String {
    Matrix::parse(text).unwrap_err().to_string()
}

#[test]
fn tables_of_all_tools_are_read() {
    for text in [A, B, C, D, E, F, G] {
        assert_eq!(matrix(text).size(), 8);
    }
    assert_eq!(matrix(E4).size(), 4);
    for (text, numa) in [(A, Some(1)), (B, None), (C, Some(5)), (E, Some(1)), (F, Some(1)), (G, Some(6))] {
        assert_eq!(matrix(text).numa(7), numa);
    }
}

#[test]
fn escapes_tabs_spaces_and_line_ends_do_not_matter() {
    let plain = A.replace("\u{1b}[4m", "").replace("\u{1b}[0m", "");
    assert_ne!(plain, A);
    for text in
        [plain.replace('\t', "   "), plain.replace('\n', "\r\n"), format!("some words\n\n{plain}"), plain]
    {
        assert_eq!(matrix(&text), matrix(A));
    }
}

#[test]
fn what_is_no_table_is_refused_with_a_sentence() {
    let rows = |rows: &[&str]| format!("\tGPU0\tGPU1\tGPU2\n{}\n", rows.join("\n"));
    let (zero, one, two) = ("GPU0\t X \tNV1\tSYS", "GPU1\tNV1\t X \tSYS", "GPU2\tSYS\tSYS\t X ");
    assert!(Matrix::parse(&rows(&[zero, one, two])).is_ok());
    for (text, message) in [
        (String::new(), "no topology table"),
        ("nvidia-smi: command not found".into(), "no topology table"),
        (rows(&[]), "columns: 3, rows: 0"),
        (rows(&[zero, one]), "columns: 3, rows: 2"),
        (rows(&[zero, one, two, "GPU3\tSYS\tSYS\tSYS"]), "columns: 3, rows: 4"),
        (rows(&[zero, two, one]), "found row GPU2, expected row GPU1"),
        (rows(&[zero, one, one]), "found row GPU1, expected row GPU2"),
        (rows(&[zero, "GPU1\tNV1", two]), "row GPU1 has length 1; expected 3"),
        (
            rows(&[zero, "GPU1\tNV2\t X \tSYS", two]),
            "not symmetric: NV1 from GPU0 to GPU1, NV2 from GPU1 to GPU0",
        ),
        (rows(&["GPU0\t X \t X \tSYS", one, two]), "X between GPU0 and GPU1"),
        (rows(&["GPU0\tSYS\tNV1\tSYS", one, two]), "SYS between GPU0 and GPU0"),
        (rows(&[zero, "GPU1\tNV1\t X \tQPI", two]), "row GPU1 of the topology table: `QPI` is not a link"),
        (rows(&[zero, "GPU1\tNV99999999999\t X \tSYS", two]), "`NV99999999999` is not a link"),
        (format!("\tGPU0\tGPU2\n{zero}\n"), "`GPU2` is out of order"),
        (format!("\tGPU0\tGPU0\n{zero}\n"), "`GPU0` is out of order"),
        ("x".repeat(300 << 10), "longer than"),
    ] {
        let refusal = refused(&text);
        assert!(refusal.contains(message), "{message}: {refusal}");
        assert!(!refusal.contains('\n') && refusal.len() < 300, "{refusal}");
    }
    let many: Vec<String> = (0..17).map(|gpu| format!("GPU{gpu}")).collect();
    assert!(refused(&many.join(" ")).contains("17 GPUs; at most 16"));
}

#[test]
fn measured_bandwidths_are_a_matrix() {
    let text = "# GB/s\nX, 48.4, 9\n48.0, X, 9.5\n9, 9, -\n";
    let matrix = matrix(text);
    assert_eq!((matrix.mbps(0, 1), matrix.mbps(2, 1), matrix.link(0, 1)), (48_000, 9000, None));
    assert_eq!(best(&matrix, all(&matrix), 2).set, set(&[0, 1]));
    assert_eq!(best(&matrix, set(&[0, 2]), 2).score.ring_mbps, 9000);
    for (text, message) in [
        ("0,1\n1,0\n1,1\n", "row GPU0 has length 2; expected 3"),
        ("0,1\nfast,0\n", "row GPU1 of the bandwidth table: `fast` is not a bandwidth"),
        ("0,-1\n1,0\n", "`-1` is not a bandwidth"),
        ("0,inf\n1,0\n", "`inf` is not a bandwidth"),
        ("0,NaN\n1,0\n", "`NaN` is not a bandwidth"),
        ("0,1e30\n1,0\n", "is not a bandwidth"),
    ] {
        let refusal = refused(text);
        assert!(refusal.contains(message), "{message}: {refusal}");
    }
    assert!(refused(&"0,1\n".repeat(500)).contains("at most 16"));
}

proptest! {
    /// No text makes the reader panic, and what it takes is square and symmetric.
    #[test]
    fn any_text_is_a_table_or_is_refused(text in "(GPU[0-9]|X|NV[0-9]|SYS|PIX|,|[0-9.]{1,3}|\t|\n| |\u{1b}\\[4m){0,60}") {
        if let Ok(matrix) = Matrix::parse(&text) {
            for one in 0..matrix.size() {
                for other in 0..matrix.size() {
                    prop_assert_eq!(matrix.mbps(one, other), matrix.mbps(other, one));
                }
            }
        }
    }

    /// A real table that lost or changed a piece is refused, or is still a matrix.
    #[test]
    fn a_damaged_table_never_panics(at in 0_usize..900, gone in 1_usize..40, put in "[ \tXSNV0-9\n]{0,5}") {
        let text: String = A.chars().take(at).chain(put.chars()).chain(A.chars().skip(at + gone)).collect();
        if let Ok(matrix) = Matrix::parse(&text) {
            best(&matrix, all(&matrix), 1);
        }
    }
}
